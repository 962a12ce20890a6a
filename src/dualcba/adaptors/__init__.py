"""Bias adaptors: networks, hypergradient, outer step, and the shipped class-agnostic part."""
