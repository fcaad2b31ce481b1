"""Tokens a second of our methods, and of a peer on the same weights and prompts.

    python -m eval.speed --model tiny --methods ar --peers transformers --json speed.json
    python -m eval.speed --random-init llama-100m --prompt-tokens 64 --json speed.json

Figures are medians over repeats in which all contenders take turns. Speed is of decoding alone; compiling and the time
to the first token stand beside it.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.bandwidth import Bandwidth, read_bandwidth
from eval.prompts.shipped_prompts import of_books
from eval.reports.report import heading, last_level_cache, print_table, run_program, write_json
from eval.scores.smashing import smash_options, with_caps, with_random_modules
from eval.timing.contest import rows, take_turns
from eval.timing.measure import Contender, Ours
from eval.timing.speed_settings import BASELINE, HAMBURGER, Settings
from jax_smash.hosts import processes
from jax_smash.loading import Model, load, quantised, random_model
from jax_smash.methods import fitting_modules
from jax_smash.plan import tree_bytes
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.prompts import read_prompts
from jax_smash.serve.request import make_request
from jax_smash.sharding import add_virtual_devices, mesh_of, mesh_of_hosts
from jax_smash.sparse import Selecting, sparsified, told
from jax_smash.tracing import traced

PROMPTS = Path(__file__).parent / "prompts" / "stories.jsonl"
RANDOM_PROMPT_TOKENS = 64
COLUMNS = (
    "method",
    "tokens_per_second",
    "ms_per_step",
    "nodes",
    "mean_accepted_tokens",
    "output_compression",
    "speedup",
    "cap",
    "ours_over_peer",
    "time_to_first_token_ms",
    "compile_s",
    "peak_memory_mb",
    "roofline_fraction",
)


def measure(settings: Settings) -> dict[str, Any]:
    """Measures all contenders and returns the report without its heading.

    Raises:
      ValueError: an option or a prompt is wrong, or a prompt does not fit the model.
      OSError: a file cannot be read.
    """
    settings.check()
    add_virtual_devices(settings.mesh, processes=processes())
    # Of the last minute: other work on the machine shows there.
    load_before = os.getloadavg()[0]
    prompts = _read_prompts(settings)
    model = _load(settings)
    if settings.text_tokens is not None:
        prompts = of_books(model, settings.num_prompts or settings.batch_size, length=settings.text_tokens)
    batches, slots = _prepare(settings, model, prompts)
    contenders = _ours(settings, model, slots)
    for contender in contenders:
        contender.warm_up(batches)
    # Only now, so that the memory of ours is told before another framework and its copy of the weights come in.
    peers = [_peer(name, model, settings) for name in settings.peers]
    for peer in peers:
        peer.warm_up(batches)
    contenders += peers
    before = _bandwidth(settings)
    with traced(settings.profile):
        runs = take_turns(contenders, batches, repeats=settings.repeats, settle_seconds=settings.settle_seconds)
    # The machine may be shared: the better of two measurements is nearer to what it can do.
    bandwidth = max(before, _bandwidth(settings), key=lambda b: b.bytes_per_second)
    speed = bandwidth.bytes_per_second
    figures = with_caps(rows(contenders, runs, batch_size=settings.batch_size, bytes_per_second=speed))
    return {
        "read_bandwidth_bytes_per_second": speed,
        "read_bandwidth": dataclasses.asdict(bandwidth),
        "model": {"name": model.name, "weight_bytes": tree_bytes(model.params), "cache_slots": slots},
        "prompt_tokens": [len(prompt) for batch in batches for prompt in batch],
        "host_load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "notes": [*_slower(figures, settings.peers), *_notes(model), *_of_policy(settings, model)],
        "rows": figures,
    }


def _read_prompts(settings: Settings) -> list[Any] | None:
    """Returns the prompts of a file; None where other ones are asked for."""
    if settings.prompts is not None:
        return read_prompts(settings.prompts)
    if settings.random_init is not None or (settings.prompt_tokens, settings.text_tokens) != (None, None):
        return None
    return read_prompts(PROMPTS)


def _load(settings: Settings) -> Model:
    dtype = jnp.dtype(settings.dtype)
    if settings.random_init is not None:
        model = random_model(settings.random_init, dtype=dtype, mesh=settings.mesh or mesh_of_hosts())
        if settings.group_lengths:
            steps = max(settings.group_lengths)
            model = with_random_modules(model, dtype, micro_layers=settings.micro_layers, micro_steps=steps)
    else:
        forced = [smash_options(settings, group_length=n, mode="blind") for n in settings.group_lengths]
        options = [smash_options(settings), *forced]
        modules = fitting_modules(str(settings.model), settings.modules, *options) if settings.smashes else None
        model = load(str(settings.model), dtype=dtype, mesh=settings.mesh or mesh_of_hosts(), modules=modules)
    return dataclasses.replace(model, stop_tokens=()) if settings.ignore_stop else model


def _prepare(settings: Settings, model: Model, prompts: list[Any] | None) -> tuple[list[list[list[int]]], int]:
    """Returns the prompts as tokens, in full batches, and the cache's capacity a row, as `generate` chooses it.

    Where the last batch needs more, the first prompts come again.
    """
    size = settings.batch_size
    taken: list[Any] = [] if prompts is None else prompts[: settings.num_prompts]
    if prompts is None:
        shape = (settings.num_prompts or size, settings.prompt_tokens or RANDOM_PROMPT_TOKENS)
        taken = np.random.default_rng(0).integers(0, model.vocab_size, shape).tolist()
    request = make_request(
        model,
        taken,
        max_new_tokens=settings.max_new_tokens,
        sampling=SamplingOptions(),
        stop=(),
        json_schema=None,
        regex=None,
        seed=0,
        chat=settings.chat,
        slots=None,
    )
    count = -(-len(request.tokens) // size) * size
    whole = [request.tokens[i % len(request.tokens)] for i in range(count)]
    return [whole[i : i + size] for i in range(0, count, size)], request.slots


def _ours(settings: Settings, model: Model, slots: int) -> list[Contender]:
    """Returns the baseline, with plain weights and its whole cache, and the methods as they are asked for."""
    sizes = {"slots": slots, "max_new_tokens": settings.max_new_tokens, "batch_size": settings.batch_size}
    if settings.weights == "plain" and settings.sparse is None:
        names = dict.fromkeys((BASELINE, *settings.methods))
        forced = [smash_options(settings, group_length=n, mode="blind") for n in dict.fromkeys(settings.group_lengths)]
        return [
            *(Ours(name, model, **sizes, draft=settings.draft(name), smash=settings.smash(name)) for name in names),
            *(Ours(HAMBURGER, model, **sizes, smash=smash) for smash in forced),
        ]
    whole = model if settings.weights == "plain" else quantised(model)
    policy = settings.policy_for(whole)
    sparse = whole if policy is None else sparsified(whole, policy)
    apart = {"weights": settings.weights, "policy": settings.sparse}

    def method(name: str) -> Contender:
        draft = settings.draft(name)
        if draft.sparse is None:
            return Ours(name, sparse, **sizes, **apart, draft=draft, smash=settings.smash(name))
        # The policy is for drafts alone: the model checks by its whole cache.
        draft = dataclasses.replace(draft, sparse=policy)
        return Ours(name, whole, **sizes, **apart, draft=draft, smash=settings.smash(name))

    return [Ours(BASELINE, model, **sizes), *map(method, dict.fromkeys(settings.methods))]


def _peer(name: str, model: Model, settings: Settings) -> Contender:
    from eval.timing.peers import PEERS  # torch takes seconds to import.

    return PEERS[name](model, dtype=settings.dtype, max_new_tokens=settings.max_new_tokens)


def _bandwidth(settings: Settings) -> Bandwidth:
    mebibytes = settings.bandwidth_mebibytes
    return read_bandwidth(None if mebibytes is None else mebibytes * 2**20)


def _slower(figures: Sequence[dict[str, Any]], peers: Sequence[str]) -> list[str]:
    """Returns a note on each of our methods that does not pay here."""
    slower = [row for row in figures if row["speedup"] < 1 and row["method"] not in peers]
    return [f"{row['method']} is slower than {BASELINE} here: {row['speedup']:.2f} of its speed" for row in slower]


def _notes(model: Model) -> list[str]:
    """Returns what a reader of the figures must know."""
    cpu, cache = jax.local_devices()[0].platform == "cpu", last_level_cache()
    mesh = mesh_of(model.params)
    divided = ["peak memory and roofline_fraction are one device's, and the model is divided over several"]
    notes = [] if mesh is None or mesh.size == 1 else divided
    if not cpu:
        return notes
    notes = [*notes, "peak_memory_mb is the process's largest resident set, Python and libraries included"]
    if cache and tree_bytes(model.params) < cache:
        notes.append(
            f"the weights fit the last-level cache ({cache} bytes), and the roofline is main memory's: "
            "roofline_fraction may exceed 1 and is limited by launching operations, not by reading"
        )
    return notes


def _of_policy(settings: Settings, model: Model) -> list[str]:
    """Returns notes on a policy: how small its share of a text may be, and the texts that it leaves whole."""
    policy = settings.policy_for(model)
    if policy is None:
        return []
    notes = [] if (known := told(policy)) is None else [f"under {settings.sparse} {known}"]
    if isinstance(policy, Selecting) and policy.pays_from:
        notes.append(f"under {settings.sparse} texts below {policy.pays_from} slots are read whole; see --sparse-from")
    return notes


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and writes the report."""
    if settings.peers:
        # Two frameworks share the device: neither may take all of its memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found = measure(settings)
    packages = ("torch",) if settings.peers else ()
    report = heading("eval.speed", arguments, dataclasses.asdict(settings), *packages) | found
    title = f"{report['device']['kind']}: {found['model']['name']}, {settings.dtype}, batch {settings.batch_size}"
    print_table(title, report["rows"], COLUMNS)
    print(f"read bandwidth {found['read_bandwidth_bytes_per_second'] / 1e9:.1f} GB/s")
    for note in found["notes"]:
        print(note)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main, several_hosts=True)
