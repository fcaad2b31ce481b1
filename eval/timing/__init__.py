"""Runs that are timed, in turn, beside other programs."""
