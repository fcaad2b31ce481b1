"""Which part of a tree is kept: by coupling, by a rejection rule, or lossily."""
