"""Dataset readers: one module per file format or published dataset."""
