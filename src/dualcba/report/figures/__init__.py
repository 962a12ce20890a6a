"""Figures: curves over the stream, bars, posteriors, and their common style."""
