"""Texts that must be equal, and what finds them to be another."""
