"""Why a row ended, as `rows.finish` holds it."""

RUNNING = 0
LENGTH = 1
STOP_TOKEN = 2
STOP_STRING = 3
NOT_A_NUMBER = 4
REASONS = ("running", "length", "stop_token", "stop_string", "not_a_number")
"""By code."""
