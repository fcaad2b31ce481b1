"""A program for tests of several hosts: decodes with the two-layer model on a mesh, and writes the tokens.

python tests/decoding_host.py CASES.json OUT.json MESH --coordinator … --num-processes … --process-id …
"""

import argparse
import dataclasses
import json
from pathlib import Path

import jax

from jax_smash.cli.errors import describe, ended
from jax_smash.hosts import HostOptions, is_first, join_hosts
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import generate
from jax_smash.sharding import add_virtual_devices, make_mesh, place
from tests.tiny import tiny_model

PROMPTS = ("Once upon a time", "The old king", "a b a b a b a", "Hello")


def decoded(cases, mesh=None):
    """Returns, for each case's options, the tokens and log-probabilities of every completion."""
    model = tiny_model()
    if mesh is not None:
        model = dataclasses.replace(model, params=place(model.params, make_mesh(mesh)))
    found = []
    for options in cases:
        given = {"max_new_tokens": 12, "batch_size": 4} | options
        given["sampling"] = SamplingOptions(**given.get("sampling", {}))
        given["draft"] = DraftOptions(**given.get("draft", {}))
        made = generate(model, PROMPTS, **given)
        found.append([[c.token_ids, [round(x.log_prob, 4) for x in c.log_probs or ()]] for c in made])
    return found


def main() -> None:
    """Joins the other hosts and decodes; the first one writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("mesh")
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    words = parser.parse_args()
    try:
        hosts = join_hosts(HostOptions(words.coordinator, words.num_processes, words.process_id))
        add_virtual_devices(words.mesh, processes=hosts)
        jax.config.update("jax_numpy_dtype_promotion", "strict")
        jax.config.update("jax_numpy_rank_promotion", "raise")
        found = decoded(json.loads(words.cases.read_text()), words.mesh)
        if is_first():
            words.output.write_text(json.dumps(found))
    except Exception as error:
        ended(describe(error), 1)
        raise


if __name__ == "__main__":
    main()
