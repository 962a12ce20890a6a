"""What the longer commands of `dualcba` do."""
