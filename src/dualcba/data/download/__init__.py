"""Download published datasets, verify and unpack them."""
