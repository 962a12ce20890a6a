"""Fused operations: Triton kernels on a GPU, plain torch on other devices."""
