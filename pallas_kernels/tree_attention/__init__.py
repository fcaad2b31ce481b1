"""Attention of a draft tree's nodes over the key-value cache and over each other."""

from pallas_kernels.tree_attention.api import kernel_here, tree_attention
from pallas_kernels.tree_attention.inputs import Inputs, Options, causal_words

__all__ = ["Inputs", "Options", "causal_words", "kernel_here", "tree_attention"]
