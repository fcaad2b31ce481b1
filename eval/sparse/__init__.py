"""Policies of sparse decoding compared: what each may read, what it chooses, how well it does."""
