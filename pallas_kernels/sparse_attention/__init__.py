"""Attention of new entries over chosen pages of a key-value cache and over each other."""

from pallas_kernels.sparse_attention.api import KERNELS, kernel_here, sparse_attention
from pallas_kernels.sparse_attention.inputs import Options, Pages, unfit

__all__ = ["KERNELS", "Options", "Pages", "kernel_here", "sparse_attention", "unfit"]
