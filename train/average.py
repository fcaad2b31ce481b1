"""Averages the weights of models that learned from the same ones.

    python -m train.average --models MODEL,MODEL --shares 0.4,0.6 --output AVERAGE

What one run learns another forgets; a point between the two in the space of weights often keeps most of both, and is a
better place to go on from than either.

Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv:2109.01903).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.checkpoints.directory import check_new
from jax_smash.checkpoints.huggingface import read_config, resolve
from jax_smash.cli.lists import Paths, Shares
from train.pack import file_sha256
from train.parts.language_model.model_folder import check_tokenizer, export
from train.run.program import run_program
from train.run.provenance import made_by
from train.run.start import loaded_params

CARD = """\
---
library_name: jax_smash
pipeline_tag: text-generation
---
# An average of models

| Share | SHA-256 of the weights |
|---|---|
{rows}

Averaged in float32, stored in bfloat16: `python -m train.average --models {models} --shares {shares} --output AVERAGE`,
{code}.
"""


def averaged(params: Iterable[nnx.State], shares: Sequence[float]) -> nnx.State:
    """Returns the average of float32 parameters, each model's counting by its share; one after another is asked for."""
    scaled = (
        jax.tree.map(lambda x, share=share: x * np.float32(share), each)
        for each, share in zip(params, shares, strict=True)
    )
    return reduce(partial(jax.tree.map, jnp.add), scaled)


def main(models: Paths, output: Path, shares: Shares = ()) -> None:
    """Writes the average of models' weights as a Hugging Face folder, with the first one's tokenizer.

    Args:
      models: folders of two or more models of one configuration and tokenizer; what else lies in them, modules for
        instance, is not read.
      output: a folder that is absent or empty.
      shares: of each model, above 0 and together 1; absent, all count alike.
    """
    shares = shares or (1 / max(len(models), 1),) * len(models)
    if len(models) < 2:
        raise ValueError(f"models must be two or more; got {len(models)}")
    if len(shares) != len(models):
        raise ValueError(f"shares must be one for each of {len(models)} models; got {len(shares)}")
    if min(shares) <= 0 or not math.isclose(math.fsum(shares), 1, abs_tol=1e-6):
        raise ValueError(f"shares must be above 0 and together 1; got {', '.join(map(str, shares))}")
    check_new(output)
    folders = [resolve(model) for model in models]
    _check_same(folders)
    hashes: list[str] = []

    def each() -> Iterator[nnx.State]:
        """Loads a model when it is its turn: memory holds no more than one beside the sum."""
        for folder in folders:
            loaded = loaded_params(folder)
            hashes.append(loaded.sha256)
            yield loaded.params

    params = averaged(each(), shares)
    export(output, read_config(folders[0])[0], jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), folders[0])
    (output / "README.md").write_text(_card(hashes, shares), encoding="utf-8")
    print("averaged into", output)


def _check_same(folders: Sequence[Path]) -> None:
    """Checks, before weights are read, that models are of one configuration and tokenizer."""
    found = [_facts(folder) for folder in folders]
    for folder, facts in zip(folders, found, strict=True):
        for name, value in facts.items():
            if value != found[0][name]:
                raise ValueError(f"{name} of {folder} must be the {found[0][name]} of {folders[0]}; got {value}")


def _facts(folder: Path) -> dict[str, Any]:
    check_tokenizer(folder)
    config = read_config(folder)[0]
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return own | {"SHA-256 of the tokenizer": file_sha256(folder / "tokenizer.json")}


def _card(hashes: Sequence[str], shares: Sequence[float]) -> str:
    rows = "\n".join(f"| {share:g} | {digest} |" for digest, share in zip(hashes, shares, strict=True))
    models = ",".join(f"MODEL{i}" for i in range(1, len(hashes) + 1))
    return CARD.format(rows=rows, models=models, shares=",".join(map(str, shares)), code=made_by())


if __name__ == "__main__":
    run_program(main)
