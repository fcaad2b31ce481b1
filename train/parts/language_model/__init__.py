"""A whole language model."""
