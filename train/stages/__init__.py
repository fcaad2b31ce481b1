"""Recipes: what they say, what is still to be made, and how each stage runs."""
