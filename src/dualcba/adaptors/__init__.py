"""Bias adaptors: networks, hypergradient, outer step, and the included class-agnostic part."""
