"""Download, verify and unpack published datasets."""
