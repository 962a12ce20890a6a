"""The sets of old and new classes, and the detection of task boundaries."""
