"""One side of `eval.against`: decodes the cases it is given, one at each line of standard input, and says how long.

It is run with another version of the project to import, so it uses only what every version offers.
"""

import dataclasses
import json
import sys
import time
from typing import Any

import jax_smash


def main() -> None:
    """Loads the model, warms every case up, then answers each line, the number of a case, by a line of JSON."""
    asked = json.loads(sys.stdin.readline())
    if asked["random_init"]:
        model = jax_smash.random_model(asked["random_init"], dtype=asked["dtype"])
    else:
        model = jax_smash.load(asked["model"], dtype=asked["dtype"])
    # Every case does the same work, whatever the text.
    model = dataclasses.replace(model, stop_tokens=())
    for case in asked["cases"]:
        _decoded(model, asked, case)
    _say({"imported": jax_smash.__file__})
    for line in sys.stdin:
        began = time.perf_counter()
        tokens = _decoded(model, asked, asked["cases"][int(line)])
        _say({"seconds": time.perf_counter() - began, "tokens": tokens})


def _decoded(model: Any, asked: dict[str, Any], case: dict[str, Any]) -> list[list[int]]:
    drafts = asked["tree"] and case["method"] not in ("ar", "hamburger")
    completions = jax_smash.generate(
        model,
        asked["prompts"][: case["batch_size"]],
        method=case["method"],
        draft=jax_smash.DraftOptions(tree=asked["tree"]) if drafts else jax_smash.DraftOptions(),
        sampling=jax_smash.SamplingOptions(temperature=asked["temperature"]),
        max_new_tokens=asked["max_new_tokens"],
        batch_size=case["batch_size"],
    )
    return [list(map(int, c.token_ids)) for c in completions]


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
