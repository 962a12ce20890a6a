"""Figures: curves over the stream, bars, posteriors, and the style that they share."""
