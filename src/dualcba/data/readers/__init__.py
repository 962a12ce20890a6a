"""Readers: one file per format or published dataset."""
