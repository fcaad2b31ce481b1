"""Attention of new entries over chosen pages of a key-value cache and over each other."""

from pallas_kernels.sparse_attention.api import kernel_here, sparse_attention
from pallas_kernels.sparse_attention.inputs import Options, Pages

__all__ = ["Options", "Pages", "kernel_here", "sparse_attention"]
