"""Batch normalisation in a stream: running statistics (IBN) and the layers CN and AdaB²N."""
