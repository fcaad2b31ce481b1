"""Packed documents cut into groups of tokens that may share a slot, by how sure a frozen base is of each token.

    python -m train.segment --packed PACKED --model MODEL --output SEGMENTED

With `--modules`, a folder that `train.hamburger` wrote, groups follow what its trained embedder loses, too.

The folder holds what the packed one does and, for each shard, the place of every token in its group. `index.json` says
how groups were made and what they are like, `groups.png` shows it. A run that was cut off goes on with `--resume`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp

from jax_smash.checkpoints.directory import check_new
from jax_smash.checkpoints.huggingface import CONFIG
from jax_smash.checkpoints.smasher import WEIGHTS, check_base_weights, load_smasher, tokenizer_sha256
from jax_smash.config import ModelConfig
from jax_smash.loading import Model, find, load
from jax_smash.quantise import activation_dtype
from jax_smash.sharding import mesh_of, on_mesh, place
from jax_smash.smash.config import MOST_STEPS, base_sha256
from jax_smash.smash.segment import Rule, make_rule
from train.data.replies import Replies
from train.data.rows import Packed
from train.data.segmented import STATISTICS, Reading, segment_packed, segmented_before
from train.data.segmenter import ByEntropy, ByFusionLoss
from train.pack import INDEX, file_sha256
from train.run.program import make_devices, run_program
from train.tokenizer import END

PRICE = 0.1
"""Nats that a slot less is worth, where nothing else is said."""


def main(
    packed: Path,
    model: str,
    output: Path,
    rule: str = "decreasing",
    floor: float | None = None,
    ratio: float | None = None,
    confidence: float | None = None,
    micro_steps: int = 4,
    prompt_share: float = 0.25,
    answers_alone: bool = False,
    reply_begins: str = "<|assistant|>",
    reply_ends: str = END,
    length: int | None = None,
    batch_tokens: int = 8192,
    modules: Path | None = None,
    price: float | None = None,
    dtype: str = "float32",
    mesh: str | None = None,
    resume: bool = False,
) -> None:
    """Segments packed documents and prints what groups are like.

    Args:
      packed: folder of shards, made by `train.pack` with the model's tokenizer.
      model: the frozen base: a shipped model, a folder, or a hub id.
      output: folder to write; absent or empty.
      rule: which tokens join the group before them: decreasing, ratio, sliding or upper-bound.
      floor: of decreasing: nats below which any token joins.
      ratio: of decreasing and ratio: share of the group's largest entropy below which a token joins.
      confidence: of sliding and upper-bound: tokens join below the entropy that leaves the likeliest so probable.
      micro_steps: tokens of a group at most.
      prompt_share: of a text without replies and marked answers, up to this share stands for a prompt and is not fused.
      answers_alone: in a text with several marked answers, what stands between them is not fused either.
      reply_begins: text before each reply of a chat.
      reply_ends: text that a reply ends with.
      length: tokens that the model reads at once; by default 1024, or as many as it was trained for.
      batch_tokens: tokens of a batch, about.
      modules: folder of trained modules for this model, the model itself where the folder holds a base: of the groups
        that the rule allows, those are made that their embedder loses least by.
      price: beside `modules`, nats that a slot less is worth; by default 0.1.
      dtype: of the base's weights in memory and of what it computes, float32 or bfloat16.
      mesh: devices to divide the base and the rows over, as in `fsdp=4,tp=2`. A CPU makes as many as it needs.
      resume: go on with a run that was cut off; where all was made with the same options, nothing is done.
    """
    make_devices(None, mesh)
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype must be float32 or bfloat16; got {dtype!r}")
    if not 1 <= micro_steps <= MOST_STEPS:
        raise ValueError(f"micro_steps must be from 1 to {MOST_STEPS}; got {micro_steps}")
    if price is not None and (modules is None or price < 0):
        raise ValueError(f"price must be at least 0, beside modules; got {price}")
    if not (resume and (output / INDEX).is_file()):
        check_new(output)
    folder = find(model)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} must hold tokenizer.json; got none")
    data = Packed(packed, folder)
    given = {"floor": floor, "ratio": ratio, "confidence": confidence}
    chosen = make_rule(rule, data.index["vocab_size"], **{k: v for k, v in given.items() if v is not None})
    Replies(prompt_share=prompt_share)  # Refuses a share out of range before the weights are read.
    base = load(model, dtype=jnp.dtype(dtype), mesh=mesh)
    config = base.config
    if config is None or base.tokenizer is None:
        raise ValueError(f"{model} must be a model with a configuration and a tokenizer")
    reading = Reading(
        _checked_length(length, config),
        batch_tokens,
        Replies(_ids(base.tokenizer, reply_begins), _ids(base.tokenizer, reply_ends), prompt_share, answers_alone),
    )
    segmenter, params, made_by = _segmenter(base, chosen, micro_steps, modules, price)
    settings = {
        "rule": rule,
        **dataclasses.asdict(chosen),  # type: ignore[call-overload]
        "micro_steps": micro_steps,
        "reading": dataclasses.asdict(reading),
        **({} if dtype == "float32" else {"dtype": dtype}),
        "model": model,
        "base_sha256": base_sha256(config),
        "weights_sha256": _weights_sha256(folder),
        "sources_sha256": data.index["sources_sha256"],
        **made_by,
    }
    if resume and segmented_before(output, settings):
        print(f"{output} is whole: all its groups were there before")
        return
    with on_mesh(mesh_of(params)):
        index = segment_packed(data, segmenter, params, reading, output, settings=settings, resume=resume)
    for name, counts in index["segmentation"][STATISTICS].items():
        print(
            f"{name:32} {counts['tokens']:>12,} tokens  {counts['tokens_a_group']:.2f} a group of replies  "
            f"{counts['tokens_a_slot']:.2f} a slot"
        )
    print(f"segmented into {output}")


def _segmenter(
    base: Model, rule: Rule, micro_steps: int, modules: Path | None, price: float | None
) -> tuple[ByEntropy, dict[str, Any], dict[str, Any]]:
    """Returns what makes groups, its parameters by role, and what is to be kept of it in the index."""
    if modules is None:
        return ByEntropy(base.definition, rule, micro_steps), base.params, {}
    config = cast(ModelConfig, base.config)
    found = load_smasher(modules, config, tokenizer_sha256(base.path), dtype=activation_dtype(base.params))
    if (modules / CONFIG).is_file() and base.path is not None and modules.resolve() != base.path.resolve():
        raise ValueError(f"{modules} holds the base that its modules were trained with: give it as the model too")
    check_base_weights(found.base_fingerprint, base.fingerprint or "", modules=modules, base=base.name)
    if micro_steps > found.config.micro_steps:
        raise ValueError(f"micro_steps must be at most the {found.config.micro_steps} of {modules}; got {micro_steps}")
    price = PRICE if price is None else price
    segmenter = ByFusionLoss(base.definition, rule, micro_steps, found.definition, price)
    kept = {"price": price, "modules_sha256": file_sha256(modules / WEIGHTS)}
    mesh = mesh_of(base.params)
    params = found.params if mesh is None else place(found.params, mesh)
    return segmenter, base.params | {"smasher": params}, kept


def _checked_length(length: int | None, config: ModelConfig) -> int:
    most = config.max_positions
    length = min(1024, most) if length is None else length
    if not 4 <= length <= most:
        raise ValueError(f"length must be from 4 to the model's {most}; got {length}")
    return length


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()


def _weights_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


if __name__ == "__main__":
    run_program(main)
