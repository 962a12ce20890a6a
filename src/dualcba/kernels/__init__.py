"""Fused operations: Triton kernels on a GPU, ordinary torch elsewhere."""
