"""Accepted tokens of drafts, by task, tree and study."""
