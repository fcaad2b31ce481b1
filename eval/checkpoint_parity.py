"""A checkpoint's logits and greedy tokens, ours and those of transformers' own loading of the same files.

    python -m eval.checkpoint_parity --model smollm2 --json parity.json

Both sides read the files by themselves, a GGUF file too, and compute in float32. Logits are compared over prompts and
what transformers says next, in one forward each. A greedy token may differ only at a near-tie, as in eval.parity.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import jax_smash
from eval.exact.reference import LoadedReference, require_torch
from eval.parity import NEAR_TIE, Draw, compare
from eval.prompts.shipped_prompts import shipped_prompts
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.cache import Block
from jax_smash.loading import Model, find
from jax_smash.protocols import ModelDef
from jax_smash.shapes import bucket

COLUMNS = ("model", "prompts", "tokens", "logit_error", "differences", "beyond_near_ties")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compares a checkpoint with transformers' loading of it.

    Attributes:
      model: a model's name, a directory or a GGUF file.
      num_prompts: pieces of the texts that come with the programs.
      prompt_tokens: of the longest prompt.
      max_new_tokens: of each prompt.
      batch_size: prompts that decode together on our side.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str = "smollm2"
    num_prompts: int = 50
    prompt_tokens: int = 48
    max_new_tokens: int = 64
    batch_size: int = 8
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compared, before anything is loaded.

        Raises:
          ValueError: an option is out of range, or torch is not installed.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for name in ("num_prompts", "prompt_tokens", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        require_torch()
        check_output(self.json, overwrite=self.overwrite)


def measure(settings: Settings) -> dict[str, Any]:
    """Compares and returns the report without its heading.

    Raises:
      ValueError, OSError: an option is wrong, or a side cannot read the checkpoint.
    """
    settings.check()
    loaded = jax_smash.load(settings.model, dtype=jnp.float32)
    model = dataclasses.replace(loaded, stop_tokens=())
    reference = LoadedReference(find(settings.model))
    prompts = shipped_prompts(model, settings.num_prompts, longest=settings.prompt_tokens)
    with jax.default_matmul_precision("highest"):
        completions = jax_smash.generate(
            model, prompts, max_new_tokens=settings.max_new_tokens, batch_size=settings.batch_size
        )
        found, error = [], 0.0
        with progress("prompts", len(prompts)) as advance:
            for number, completion in enumerate(completions):
                draw = Draw(prompts=[prompts[number]], max_new_tokens=settings.max_new_tokens)
                differences = compare(reference, draw, [completion.token_ids])
                found += [{"prompt": number, **dataclasses.asdict(d), "near_tie": d.near_tie} for d in differences]
                error = max(error, logit_error(model, reference, [*prompts[number], *completion.token_ids]))
                advance()
    row = {
        "model": settings.model,
        "prompts": len(prompts),
        "tokens": sum(c.new_tokens for c in completions),
        "logit_error": error,
        "differences": len(found),
        "beyond_near_ties": sum(not d["near_tie"] for d in found),
    }
    return {"rows": [row], "near_tie": NEAR_TIE, "differences_listed": found}


def logit_error(model: Model, reference: LoadedReference, tokens: Sequence[int]) -> float:
    """Returns the largest difference of two sides' logits over a text, in units of the largest magnitude."""
    theirs = reference.logits(tokens[:1], tokens[1:])
    # Filled up behind the text, which does not see it, so that few lengths are compiled.
    padded = jnp.asarray([[*tokens, *[0] * (bucket(len(tokens)) - len(tokens))]], jnp.int32)
    ours = np.asarray(_logits(model.definition, model.params["target"], padded))[0, : len(tokens) - 1]
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@functools.partial(jax.jit, static_argnums=0)
def _logits(definition: ModelDef, params: Any, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    model = definition.bind(params)
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    block = Block.causal(jnp.ones(tokens.shape, bool))
    return model.unembed(model.forward(model.embed(tokens), position, None, block).hidden)


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Compares, prints a table, writes the report; returns 1 where the sides differ by more than rounding."""
    found = measure(settings)
    report = heading("eval.checkpoint_parity", arguments, dataclasses.asdict(settings), "torch", "gguf") | found
    print_table("Logits and greedy tokens, ours and transformers'", report["rows"], COLUMNS)
    for difference in report["differences_listed"]:
        print(difference)
    if settings.json is not None:
        write_json(settings.json, report)
    return int(any(row["beyond_near_ties"] or row["logit_error"] > NEAR_TIE for row in report["rows"]))


if __name__ == "__main__":
    run_program(Settings, main)
