"""Programs that measure: run as `python -m eval.NAME`. They are not installed."""
