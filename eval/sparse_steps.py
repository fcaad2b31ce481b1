"""What a decode step takes at a length: by the whole cache, by chosen slots, and drafted by chosen slots.

    python -m eval.sparse_steps --model smollm2 --lengths 2048,4096,7552 --json steps.json

Contenders read one prompt together: what it leaves in the cache is copied to each, so that a long prompt is read once.
Then they take turns of a few steps. Figures are medians of what a turn took beside that of the baseline in the same
round. What a layer's choice is made of stands beside: its scores, its best, its gather, and attention to them.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from eval.prompts.shipped_prompts import of_books
from eval.reports.options import Names, Numbers
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from eval.sparse.overhead import check_positions
from jax_smash.attention import attend, attend_selected
from jax_smash.cache import Block, LayerCache, SelectedCache, SelectedLayer
from jax_smash.cache.selected import take_slots
from jax_smash.draft.trees.templates import named_tree
from jax_smash.loading import Model, load
from jax_smash.methods import DraftOptions, make_method
from jax_smash.methods.self_sparse import CHAIN
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sparse import Learned, Selecting, named_policy, paying, sparsified

COLUMNS = ("length", "batch_size", "method", "ms_per_step", "tokens_per_step", "speedup", "kept")
PART_COLUMNS = ("length", "method", "whole_ms", "part_ms", "score_and_choose_ms", "gather_ms", "attend_ms")
BASELINE = "ar"
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Times decode steps at some lengths.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      lengths: tokens of the prompts, pieces of books.
      policies: each as `sparse.named_policy` takes it; of those that choose slots.
      trees: of self-sparse, which drafts by the first policy; auto takes what pays.
      int8: self-sparse also drafts by weights in int8.
      auto: policies read the whole cache while that is faster on this device, as under `jax-smash generate`; else they
        always choose.
      batch_size: prompts that decode together.
      steps: of a turn.
      turns: of each contender; medians count.
      parts: also times what a layer's choice is made of, but for a trained predictor's.
      dtype: of the weights.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str = "smollm2"
    lengths: Numbers = (2048, 4096, 7552)
    policies: Names = ("quest:budget=25%", "quest:budget=25%:page_size=64")
    trees: Names = ("chain-2", "chain-4")
    int8: bool = True
    auto: bool = False
    batch_size: int = 1
    steps: int = 8
    turns: int = 5
    parts: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range, or a policy is unknown or chooses no slots.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for name in ("batch_size", "steps", "turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not self.lengths or min(self.lengths) < 1 or not self.policies:
            raise ValueError(f"there must be lengths over 0 and policies; got {self.lengths} and {self.policies}")
        for name in self.policies:
            if not isinstance(named_policy(name), Selecting):
                raise ValueError(f"policies must choose slots; got {name}")
        check_output(self.json, overwrite=self.overwrite)

    def new_tokens(self) -> int:
        """Returns the most tokens that a row may emit: in all turns and in the first step of each contender."""
        deepest = max((CHAIN.levels if tree == AUTO else named_tree(tree).levels for tree in self.trees), default=0)
        return (deepest + 1) * self.steps * (self.turns + 1) + 1


class Side:
    """A way to decode, with a session that never read the prompt itself."""

    def __init__(self, settings: Settings, name: str, model: Model, method: str, length: int, draft: DraftOptions):
        """Makes the session; reads nothing."""
        self.name, self.steps = name, settings.steps
        slots = length + settings.new_tokens() + 8
        made = make_method(model, method, draft=draft, batch=settings.batch_size, slots=slots)
        self.session = Session(
            model,
            made,
            slots=slots,
            max_new_tokens=settings.new_tokens(),
            sampling=[SamplingOptions()] * settings.batch_size,
            seeds=[0] * settings.batch_size,
        )

    def take(self, rows: Any, cache: Any) -> None:
        """Goes on from rows that have read a prompt, with a copy of what it left in a cache."""
        own = self.session.state.rows.memory
        memory = own | {"target": cache}
        rows = jax.tree.map(jnp.copy, replace(rows, memory=memory))
        self.session.state = replace(self.session.state, rows=rows)

    def turn(self) -> tuple[float, int]:
        """Makes some steps. Returns their seconds, and the tokens that they emitted."""
        before = sum(map(len, self.session.outputs()))
        began = time.perf_counter()
        self.session.run(self.steps)
        took = time.perf_counter() - began
        return took, sum(map(len, self.session.outputs())) - before

    def kept(self) -> float | None:
        """Returns the share of first drafted tokens that were kept; None where nothing is drafted."""
        notes = self.session.state.rows.memory.get("drafts")
        if notes is None or not notes.tried.shape[1]:
            return None
        return float(notes.kept[:, 0].sum() / jnp.maximum(notes.tried[:, 0].sum(), 1))


def measure(settings: Settings) -> dict[str, Any]:
    """Returns rows of steps, and of a layer's parts, at every length."""
    settings.check()
    model = dataclasses.replace(load(settings.model, dtype=jnp.dtype(settings.dtype)), stop_tokens=())
    check_positions(model, settings.lengths, settings.new_tokens())
    rows, parts = [], []
    with progress("measuring", len(settings.lengths) * len(settings.policies)) as advance:
        for length in settings.lengths:
            prompts = of_books(model, settings.batch_size, length=length)
            for number, name in enumerate(settings.policies):
                facts = {"length": length, "batch_size": settings.batch_size, "policy": name}
                timed, part = _measured(settings, model, prompts, name, drafts=number == 0)
                rows += [facts | row for row in timed if number == 0 or row["method"] != BASELINE]
                parts += [facts | {"method": name} | part] if part else []
                advance()
    return {"rows": rows, "parts": parts}


def _measured(
    settings: Settings, model: Model, prompts: list[list[int]], name: str, *, drafts: bool
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Returns a row of each way to decode, and a layer's parts where they are measured. No cache stays behind."""
    sides, cache = _sides(settings, model, prompts, name, drafts=drafts)
    timed = _in_turns(sides, settings.turns)
    # What a predictor chooses by is made on the way through the layers: it has no parts of its own.
    apart = isinstance(cache, SelectedCache) and not isinstance(cache.policy, Learned)
    return timed, _parts(cache, model) if settings.parts and apart else {}


def _sides(
    settings: Settings, model: Model, prompts: list[list[int]], name: str, *, drafts: bool
) -> tuple[list[Side], Any]:
    """Returns ways to decode that have all read the prompts, and the cache that a policy chooses of."""
    policy, length = named_policy(name), len(prompts[0])
    if settings.auto:
        policy = paying(policy, model, batch=settings.batch_size)
    first = Side(settings, f"sparse {name}", sparsified(model, policy), "ar", length, DraftOptions())
    first.session.read(prompts)
    held = jax.tree.map(jnp.copy, first.session.state.rows)
    whole = held.cache.cache if isinstance(held.cache, SelectedCache) else held.cache
    sides = [Side(settings, BASELINE, model, "ar", length, DraftOptions()), first]
    sides[0].take(held, whole)
    weights = ((None, ""), ("int8", " int8")) if settings.int8 else ((None, ""),)
    for tree in settings.trees if drafts else ():
        for draft_model, named in weights:
            draft = DraftOptions(tree=tree, sparse=policy, draft_model=draft_model)
            side = Side(settings, f"self-sparse{named} {tree} {name}", model, "self-sparse", length, draft)
            side.take(held, held.cache)
            sides.append(side)
    return sides, held.cache


def _in_turns(sides: Sequence[Side], turns: int) -> list[dict[str, Any]]:
    """Returns a row of each side. A first turn compiles and is not counted."""
    for side in sides:
        side.turn()
    found: dict[str, list[tuple[float, int]]] = {side.name: [] for side in sides}
    for _ in range(turns):
        for side in sides:
            found[side.name].append(side.turn())
    speeds = {name: [tokens / took for took, tokens in made] for name, made in found.items()}
    return [
        {
            "method": side.name,
            "ms_per_step": 1e3 * statistics.median(took for took, _ in found[side.name]) / side.steps,
            "tokens_per_step": statistics.mean(n for _, n in found[side.name]) / side.steps / side.session.batch,
            "tokens_per_second": statistics.median(speeds[side.name]),
            "speedup": statistics.median(a / b for a, b in zip(speeds[side.name], speeds[BASELINE], strict=True)),
            "kept": side.kept(),
        }
        for side in sides
    ]


def _parts(cache: SelectedCache, model: Model, *, calls: int = 15) -> dict[str, float]:
    """Returns milliseconds of attention in a layer that chooses, of a whole one, and of what the choice is made of."""
    layer = max(i for i, plan in enumerate(cache.plans) if plan is not None)
    config: Any = model.config
    view: Any = cache.layer(layer)
    rows, heads, _, width = view.layer.keys.shape
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.normal(size=(rows, 1, config.num_heads, width)), view.layer.keys.dtype)
    key, value = query[:, :, :heads], query[:, :, :heads]
    position, block = view.filled[:, None], Block.causal(jnp.ones((rows, 1), bool))
    scoring: Any = {"scale": view.plan.scale, "softcap": view.plan.softcap}
    new = (query, key, value, position)

    def gather(view: SelectedLayer, slots: Any) -> Any:
        return take_slots(view.layer.keys, slots).sum() + take_slots(view.layer.values, slots).sum()

    def attend_to(view: SelectedLayer, slots: Any) -> Any:
        chosen = slots.shape[2]
        held = LayerCache(
            keys=view.layer.keys[:, :, :chosen],
            values=view.layer.values[:, :, :chosen],
            position=view.layer.position[:, :chosen],
        )
        return attend(*new, held, block, **scoring)

    slots = view.policy.select(view, query[:, 0]).slots
    timed = {
        "whole_ms": (lambda view, slots: attend(*new, view.layer, block, **scoring)),
        "part_ms": (lambda view, slots: attend_selected(*new, view, block)[0]),
        "score_and_choose_ms": (lambda view, slots: view.policy.select(view, query[:, 0]).slots),
        "gather_ms": gather,
        "attend_ms": attend_to,
    }
    return {name: 1e3 * _seconds(jax.jit(f), view, slots, calls=calls) for name, f in timed.items()}


def _seconds(function: Callable[..., Any], *arguments: Any, calls: int) -> float:
    """Returns the median of what calls take; of a first one, which compiles, nothing is told."""
    jax.block_until_ready(function(*arguments))
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints tables and writes the report."""
    found = measure(settings)
    report = heading("eval.sparse_steps", arguments, dataclasses.asdict(settings)) | found
    print_table(f"{report['device']['kind']}: {settings.model}, {settings.dtype}", report["rows"], COLUMNS)
    if report["parts"]:
        print_table("A layer's attention, by the whole cache and by chosen slots", report["parts"], PART_COLUMNS)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
