"""Timings and comparisons. Tests run them without assertions about times."""
