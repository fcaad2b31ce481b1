"""Programs that train: run as `python -m train.NAME`. They are not installed, and need the extra `train`."""
