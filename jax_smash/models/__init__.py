"""The one transformer, its layers, and the families that it reads."""
