"""Which classes are old and new, and when a task begins."""
