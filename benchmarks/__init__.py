"""Timings and side-by-side comparisons. The tests run them and assert no time."""
