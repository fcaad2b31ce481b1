"""Golden shapes: what the decoding programs take and return, so that a layout changes on purpose only.

    python -m eval.golden_shapes --json tests/golden/shapes.json

Of each method under all processors, the file lists the dtype and shape of every array that the loop takes: the modules'
parameters by role, and the state, which the loop returns with the same shapes. Nothing is decoded.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from eval.exact.conditions import Condition
from eval.exact.golden_cases import KEPT, Case, Decoder, Prompts
from eval.reports.options import Names
from eval.reports.report import check_output, heading, progress, run_program, write_json
from jax_smash.decode.loop import Chunk, decode, prefill, start
from jax_smash.methods import METHODS, check_method
from jax_smash.serve.session import Session
from jax_smash.shapes import bucket

Shapes = dict[str, str]
"""By an array's path in its tree: its dtype and shape, as in `float32[3,4,96,32]`."""

PROMPTS = Prompts(num_prompts=3, prompt_tokens=48, max_new_tokens=20, seed=0)
CONDITION = Condition(batch_size=3, processors="all", choice="sampled")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Writes the shapes of the decoding programs.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      methods: by name; hamburger needs modules beside the model.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    methods: Names = KEPT
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what has no shapes, before anything is loaded.

        Raises:
          ValueError: a method is unknown, or none is given.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for method in self.methods:
            check_method(method)
        if not self.methods:
            raise ValueError(f"methods must be of {', '.join(METHODS)}; got none")
        check_output(self.json, overwrite=self.overwrite)


def loop_shapes(decoder: Decoder, method: str) -> dict[str, Shapes]:
    """Returns the shapes that the loop takes under a method: `params`, and `state`, which the loop also returns.

    Raises:
      ValueError: reading a prompt, starting or decoding changes a shape of the state.
    """
    case = Case(method, CONDITION)
    made, request = decoder.method(case), decoder.request(case)
    session = Session(
        decoder.model(method),
        made,
        slots=request.slots,
        max_new_tokens=PROMPTS.max_new_tokens,
        sampling=request.sampling,
        seeds=request.seeds,
        stops=request.stops,
        grammar=request.grammar,
        log_probs=CONDITION.log_probs,
    )
    size = (CONDITION.batch_size, bucket(PROMPTS.prompt_tokens))
    chunk = Chunk(tokens=jnp.zeros(size, jnp.int32), valid=jnp.zeros(size, bool))
    steps = jnp.zeros((), jnp.int32)
    state = session.state
    held = listed(state)
    calls = {"prefill": (prefill, (chunk,)), "start": (start, ()), "decode": (decode, (steps,))}
    for name, (function, arguments) in calls.items():
        out = function.eval_shape(made.strategy, made.params, state, *arguments)
        state = out[0] if function is prefill else out
        if (found := listed(state)) != held:
            changed = sorted(dict(found.items() ^ held.items()))
            raise ValueError(f"{name} of method {method} changes the shapes of {', '.join(changed)}")
    return {"params": listed(made.params), "state": held}


def listed(tree: Any) -> Shapes:
    """Returns the dtype and shape of each array of a tree by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in leaves
    }


def measure(settings: Settings) -> dict[str, Any]:
    """Returns shapes that all methods share under `every_method`, and under `methods` those that each has beside."""
    settings.check()
    decoder = Decoder(settings.model, PROMPTS)
    with progress("methods", len(settings.methods)) as advance:
        shapes = {}
        for method in settings.methods:
            shapes[method] = loop_shapes(decoder, method)
            advance()
    first = shapes[settings.methods[0]]
    shared = {
        kind: {
            path: shape
            for path, shape in first[kind].items()
            if all(s[kind].get(path) == shape for s in shapes.values())
        }
        for kind in first
    }
    own = {
        method: {kind: {path: s for path, s in one[kind].items() if path not in shared[kind]} for kind in one}
        for method, one in shapes.items()
    }
    return {"every_method": shared, "methods": own}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Writes the file, or prints how many arrays the loop takes."""
    settings.check()
    report = heading("eval.golden_shapes", arguments, dataclasses.asdict(settings))
    found = measure(settings)
    shared = sum(map(len, found["every_method"].values()))
    for method, own in found["methods"].items():
        print(f"{method}: {shared + sum(map(len, own.values()))} arrays, of which {shared} are those of every method")
    if settings.json is not None:
        del report["code"]  # The shapes must stay while the code changes.
        write_json(settings.json, report | found)


if __name__ == "__main__":
    run_program(Settings, main)
