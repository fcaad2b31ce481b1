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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from eval.bandwidth import Bandwidth, read_bandwidth
from eval.exact.reference import require_torch
from eval.prompts.shipped_prompts import of_books
from eval.reports.options import ONE_ROW, Names, Numbers, Peers
from eval.reports.report import check_output, heading, last_level_cache, print_table, run_program, write_json
from eval.scores.smashing import smash_options, with_caps, with_random_modules
from eval.timing.contest import rows, take_turns
from eval.timing.measure import Contender, Ours
from jax_smash.hosts import processes
from jax_smash.loading import Model, load, quantised, random_model
from jax_smash.methods import OPTIONS, DraftOptions, check_draft, check_method, check_smash, fitting_modules
from jax_smash.plan import tree_bytes
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import check_weights
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.prompts import read_prompts
from jax_smash.serve.request import make_request
from jax_smash.sharding import add_virtual_devices, mesh_of, mesh_of_hosts
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import Selecting, named_policy, paying, sparsified
from jax_smash.tracing import check_folder, traced

PROMPTS = Path(__file__).parent / "prompts" / "stories.jsonl"
BASELINE, HAMBURGER = "ar", "hamburger"
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


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures tokens a second.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      random_init: a preset's name (llama-100m, llama-3.2-1b, llama-3.1-8b, …) or a directory with a config.json:
        a real shape with random weights, in place of a model.
      methods: names of our methods. `ar` is always measured too, for speed-ups are against it.
      prompts: file of prompts, one {"prompt": …} a line; by default stories that come with the program.
      prompt_tokens: prompts of this many random tokens, in place of a file; 64 for a random model.
      text_tokens: prompts of this many tokens of books, in place of a file: long ones, for caches.
      num_prompts: prompts to take; by default the whole file, or one batch of random ones or of books.
      chat: text prompts are a user's message, put into the model's chat template.
      batch_size: prompts that decode together.
      max_new_tokens: of each prompt.
      dtype: of the weights.
      weights: int8 measures the methods with int8 weights, modules included, against `ar` with plain ones on the same
        prompts.
      mesh: devices to divide the model and its rows over, as in fsdp=4,tp=2; a CPU makes as many as it needs.
        Or a preset, which divides all that there are: dp, fsdp, tp or fsdp+tp.
      tree: that methods which draft are given, as in `jax-smash generate --tree`.
      warm_start: a file that `jax-smash generate --save-warm-start` wrote, for methods that take it.
      lookup_corpus: texts that methods which take it look up in.
      draft_model: what draft-model drafts with, a model's name or int8.
      stored_probabilities: recycling grows its trees by stored probabilities.
      verify: how sampled drafts are checked, as in `jax-smash generate --verify`.
      modules: HAMburger modules, a folder; by default those beside the model. Where the folder holds a base, which was
        trained with them, every method decodes with that one.
      smash_mode, confidence, token_confidence, micro_steps, micro_head, least_rows: of hamburger, as in `jax-smash
        generate`; by default as the modules were calibrated.
      group_lengths: measures hamburger with groups that all have so many tokens too, whatever the stop head says, and
        from them the cost of a micro-step and the speed-up that it allows. A random model gets random modules.
      micro_layers: of random modules.
      sparse: measures the methods with caches read by this policy, as in `jax-smash generate --sparse`, against
        `ar` with the whole cache. Of self-sparse only drafts read by it.
      kv_budget, page_size: of the policy.
      sparse_from: slots from which a step chooses what it reads, as in `jax-smash generate --sparse-from`; by default
        from where that is faster on this device. 0 always chooses.
      ignore_stop: decode on past stop tokens, so that every method does the same work.
      repeats: of everything; medians count.
      settle_seconds: pause before each run, in which the other framework's idle threads stop spinning.
      peers: other programs to run on the same weights and prompts; transformers-lookup takes one prompt at a time.
      bandwidth_mebibytes: size of the array by which read bandwidth is measured; by default 1 GiB on a CPU.
      profile: folder to write a trace of the measured runs to.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str | None = None
    random_init: str | None = None
    methods: Names = (BASELINE,)
    prompts: Path | None = None
    prompt_tokens: int | None = None
    text_tokens: int | None = None
    num_prompts: int | None = None
    chat: bool = False
    batch_size: int = 1
    max_new_tokens: int = 128
    dtype: Literal["float32", "bfloat16"] = "float32"
    weights: Literal["plain", "int8"] = "plain"
    mesh: str | None = None
    tree: str = "auto"
    warm_start: Path | None = None
    lookup_corpus: Path | None = None
    draft_model: str | None = None
    stored_probabilities: bool = False
    verify: str = "coupling"
    modules: str | None = None
    smash_mode: str | None = None
    confidence: float | None = None
    token_confidence: float | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    least_rows: int | None = None
    group_lengths: Numbers = ()
    micro_layers: int = 4
    sparse: str | None = None
    kv_budget: str | None = None
    page_size: int | None = None
    sparse_from: int | None = None
    ignore_stop: bool = True
    repeats: int = 5
    settle_seconds: float = 0.2
    peers: Peers = ()
    bandwidth_mebibytes: int | None = None
    profile: Path | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range, two exclude each other, or a peer is not installed.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if (self.model is None) == (self.random_init is None):
            raise ValueError(f"give either --model or --random-init; got {self.model} and {self.random_init}")
        sources = {"--prompts": self.prompts, "--prompt-tokens": self.prompt_tokens, "--text-tokens": self.text_tokens}
        if len(given := [name for name, value in sources.items() if value is not None]) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other; got both")
        if self.text_tokens is not None and self.random_init is not None:
            raise ValueError("text_tokens needs the tokenizer of a model; a random one has none")
        least = {"batch_size": 1, "max_new_tokens": 2, "repeats": 1, "settle_seconds": 0}
        least |= {"prompt_tokens": 1, "text_tokens": 1, "num_prompts": 1, "bandwidth_mebibytes": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ValueError(f"{name} must be at least {smallest}; got {value}")
        check_weights(self.weights)
        self.policy()
        for method in self.methods:
            check_method(method)
            check_draft(method, self.draft(method))
            check_smash(method, self.smash(method))
        for name in self._given():
            if not any(name in OPTIONS.get(method, ()) for method in self.methods):
                raise ValueError(f"{name} goes with none of the methods {', '.join(self.methods)}")
        if not self.smashes and smash_options(self) != SmashOptions():
            raise ValueError(f"options of {HAMBURGER} go with none of the methods {', '.join(self.methods)}")
        if HAMBURGER in self.methods and self.random_init is not None:
            raise ValueError(f"random_init has no trained modules for {HAMBURGER}: give group_lengths in its place")
        if (least := min(*self.group_lengths, self.micro_layers, 1)) < 1:
            raise ValueError(f"group_lengths and micro_layers must be at least 1; got {least}")
        if self.group_lengths and self.weights != "plain":
            raise ValueError(f"group_lengths goes with plain weights; got {self.weights}")
        if self.group_lengths and self.sparse is not None:
            raise ValueError(f"group_lengths goes with the whole cache; got sparse {self.sparse}")
        if self.group_lengths and self.smash_mode not in (None, "blind"):
            raise ValueError(f"group_lengths goes with smash_mode blind; got {self.smash_mode}")
        for length in self.group_lengths:
            smash_options(self, group_length=length, mode="blind").check()
        if self.modules is not None and (self.random_init is not None or not self.smashes):
            raise ValueError(f"modules goes with {HAMBURGER} and with trained modules alone; got {self.modules}")
        if self.batch_size > 1 and set(self.peers) & set(ONE_ROW):
            raise ValueError(f"batch_size must be 1 beside {', '.join(ONE_ROW)}; got {self.batch_size}")
        if self.peers:
            require_torch()
        check_folder(self.profile)
        check_output(self.json, overwrite=self.overwrite)

    def draft(self, method: str) -> DraftOptions:
        """Returns those options of drafting that a method takes."""
        taken = OPTIONS.get(method, ())
        drafting = {"sparse": self.policy()} if "sparse" in taken else {}
        return DraftOptions(**{name: getattr(self, name) for name in self._given() if name in taken}, **drafting)

    def policy(self) -> SparsePolicy | None:
        """Returns the policy that caches are read by; None for the whole.

        Raises:
          ValueError: an option of it is wrong, or goes with a policy alone.
        """
        if self.sparse is None:
            if (self.kv_budget, self.page_size, self.sparse_from) != (None, None, None):
                raise ValueError("kv_budget, page_size and sparse_from go with sparse")
            return None
        policy = named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)
        if self.sparse_from is None:
            return policy
        if not isinstance(policy, Selecting):
            raise ValueError(f"sparse_from goes with a policy that chooses slots; got {self.sparse}")
        return dataclasses.replace(policy, pays_from=self.sparse_from)

    def policy_for(self, model: Model) -> SparsePolicy | None:
        """Returns the policy for a model that is loaded: short texts are read whole, unless `sparse_from` says else."""
        policy = self.policy()
        if policy is None or self.sparse_from is not None:
            return policy
        return paying(policy, model, batch=self.batch_size)

    @property
    def smashes(self) -> bool:
        """Whether HAMburger is measured, and needs modules."""
        return HAMBURGER in self.methods or bool(self.group_lengths)

    def smash(self, method: str) -> SmashOptions:
        """Returns the options of HAMburger, which no other method takes."""
        return smash_options(self) if method == HAMBURGER else SmashOptions()

    def _given(self) -> list[str]:
        # A policy goes with every method.
        fields = [f for f in dataclasses.fields(DraftOptions) if hasattr(self, f.name) and f.name != "sparse"]
        return [f.name for f in fields if getattr(self, f.name) != f.default]


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
        "notes": [*_slower(figures, settings.peers), *_notes(model), *_read_whole(settings, model)],
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


def _read_whole(settings: Settings, model: Model) -> list[str]:
    """Returns a note on the texts that a policy leaves whole; none where there are none."""
    policy = settings.policy_for(model)
    if not isinstance(policy, Selecting) or not policy.pays_from:
        return []
    return [f"under {settings.sparse} texts below {policy.pays_from} slots are read whole; see --sparse-from"]


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
