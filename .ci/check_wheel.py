"""Checks that a wheel holds the two packages with their data, nothing else, and no more bytes than it may have."""

import os
import sys
import zipfile

MOST = 60e6
"""Bytes that a wheel may have."""


def main(path: str) -> None:
    """Raises `SystemExit` naming what is missing from the wheel or should not be in it, or its size if that is over."""
    names = zipfile.ZipFile(path).namelist()
    metadata = next(n for n in names if n.endswith("METADATA")).split("/")[0]
    strays = [n for n in names if n.split("/")[0] not in {"jax_smash", "pallas_kernels", metadata}]
    wanted = {
        "jax_smash/__init__.py",
        "jax_smash/py.typed",
        "jax_smash/models/transformer.py",
        "jax_smash/assets/tiny/config.json",
        "jax_smash/assets/tiny/model.safetensors",
        "jax_smash/assets/tiny/tokenizer.json",
        "jax_smash/assets/tiny/chat_template.jinja",
        "jax_smash/assets/tiny/hamburger/model.safetensors",
        "jax_smash/assets/tiny/hamburger/smasher.json",
        "jax_smash/assets/tiny/hamburger/smasher.safetensors",
        *(
            f"jax_smash/assets/predictors/smollm2/{form}/butler.{kind}"
            for form in ("per_head", "grouped", "low_rank", "gate")
            for kind in ("json", "safetensors")
        ),
        *(
            f"jax_smash/assets/drafters/smollm2/{method}/{method}.{kind}"
            for method in ("eagle", "chimera")
            for kind in ("json", "safetensors")
        ),
        "pallas_kernels/__init__.py",
    }
    missing = wanted - set(names)
    if strays or missing:
        sys.exit(f"{path}: strays {sorted(strays)}, missing {sorted(missing)}")
    size = os.path.getsize(path)
    if size > MOST:
        sys.exit(f"{path}: {size / 1e6:.1f} MB, more than {MOST / 1e6:.0f}")
    print(f"{path.split('/')[-1]}: {len(names)} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
