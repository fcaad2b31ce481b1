"""Answers of a model, their scores, and intervals of both."""
