"""Programs that train: run as `python -m train.NAME`. They are not installed, and need the extra `train`."""

import importlib.util

for _name in ("grain", "filelock", "matplotlib"):
    if importlib.util.find_spec(_name) is None:
        raise ImportError(f"training needs the package {_name}: pip install 'jax_smash[train]'")
