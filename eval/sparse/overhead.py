"""What choosing costs beside decoding: bytes, milliseconds of a step, milliseconds of the choices alone."""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.timing.contest import take_turns
from eval.timing.measure import Ours
from jax_smash.cache import Block, SelectedLayer, Write
from jax_smash.loading import Model
from jax_smash.shapes import round_up
from jax_smash.sparse import SparseDef

METHOD = "ar"
DENSE = "dense"
SLOT_MULTIPLE = 16


def check_positions(model: Model, lengths: Sequence[int], new_tokens: int) -> None:
    """Refuses prompts that do not fit a model's positions with what is decoded behind them.

    Raises:
      ValueError: the longest has too many tokens.
    """
    # The last new token is never read.
    most = None if model.max_positions is None else model.max_positions - new_tokens + 1
    if most is not None and max(lengths) > most:
        raise ValueError(
            f"lengths must be at most {most}, so that {new_tokens} new tokens fit the {model.max_positions} positions "
            f"of {model.name}; got {max(lengths)}"
        )


def decode_speeds(
    models: Mapping[str, Model], *, length: int, new_tokens: int, repeats: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns the speed of plain decoding of one row behind a prompt of random tokens, by contender.

    Contenders take turns, so that a machine that slows down slows all of them alike; figures are medians over repeats.

    Args:
      models: by name, the dense one among them as `dense`; policies otherwise.
      length: tokens of the prompt.
      new_tokens: that are decoded.
      repeats: of everything.
      seed: of the prompt.
    """
    plain = models[DENSE]
    prompt = np.random.default_rng(seed).integers(0, plain.vocab_size, length).tolist()
    slots = round_up(length + new_tokens, SLOT_MULTIPLE)
    contenders = {}
    for name, model in models.items():
        # Every contender does the same work, whatever its text.
        model = dataclasses.replace(model, stop_tokens=())
        contender = Ours(METHOD, model, slots=slots, max_new_tokens=new_tokens, batch_size=1)
        contender.name = name
        contender.warm_up([[prompt]])
        contenders[name] = contender
    runs = take_turns(list(contenders.values()), [[prompt]], repeats=repeats, settle_seconds=0.0)
    found = []
    for name in contenders:
        steps = [1e3 * s.decode_s / s.steps for repeat in runs[name] for s in repeat]
        usual = [1e3 * s.decode_s / s.steps for repeat in runs[DENSE] for s in repeat]
        found.append(
            {
                "policy": name,
                "length": length,
                "ms_per_step": statistics.median(steps),
                "tokens_per_second": 1e3 / statistics.median(steps),
                "speedup": statistics.median(b / a for a, b in zip(steps, usual, strict=True)),
                "ms_by_repeat": steps,
            }
        )
    return found


def with_choosing(rows: Sequence[dict[str, Any]], free: str) -> list[dict[str, Any]]:
    """Returns rows with `choosing_ms`: the milliseconds that a step takes beyond one of a policy with as many slots.

    It is the median over repeats, in which the two took turns. The dense row has none.

    Args:
      rows: of `decode_speeds` at one length.
      free: name of the policy that chooses for nothing.
    """
    (base,) = (row["ms_by_repeat"] for row in rows if row["policy"] == free)
    return [
        row
        if row["policy"] == DENSE
        else row | {"choosing_ms": statistics.median(a - b for a, b in zip(row["ms_by_repeat"], base, strict=True))}
        for row in rows
    ]


def choice_ms(model: Model, *, length: int, repeats: int, seed: int = 0) -> float | None:
    """Returns the milliseconds that all layers' choices of one step take by themselves.

    None where none chooses, or where a predictor chooses, which works between the layers of a forward.

    Args:
      model: a sparse one.
      length: slots that the row holds.
      repeats: of the choices; the median counts.
      seed: of the text and of the queries.
    """
    definition = model.definition
    if not isinstance(definition, SparseDef) or definition.predictor is not None or model.config is None:
        return None
    random = np.random.default_rng(seed)
    tokens = jnp.asarray(random.integers(0, model.vocab_size, (1, length)), jnp.int32)
    cache = jax.jit(_read, static_argnums=0)(definition, model.params["target"], tokens)
    views = [view for i in range(model.config.num_layers) if isinstance(view := cache.layer(i), SelectedLayer)]
    if not views:
        return None
    shape = (model.config.num_layers, 1, model.config.num_heads, model.config.head_width)
    queries = jnp.asarray(random.standard_normal(shape), views[0].layer.keys.dtype)
    chosen = jax.jit(_chosen)
    times = []
    for _ in range(repeats + 1):  # The first one compiles.
        begun = time.perf_counter()
        jax.block_until_ready(chosen(cache, queries))
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[1:])


def training_seconds(lines: Sequence[Mapping[str, Any]], tokens_per_step: int) -> float:
    """Returns the seconds of a training run by the speeds that its `metrics.jsonl` tells.

    Args:
      lines: of the file.
      tokens_per_step: of the run.

    Raises:
      ValueError: no line tells a speed.
    """
    told = [line for line in lines if line.get("tokens_per_second")]
    if not told:
        raise ValueError("a run's metrics must tell tokens_per_second; got no line that does")
    steps = np.diff([0, *(line["step"] for line in told)])
    return float(sum(s * tokens_per_step / line["tokens_per_second"] for s, line in zip(steps, told, strict=True)))


def _read(definition: Any, params: Any, tokens: Any) -> Any:
    model = definition.bind(params)
    rows, width = tokens.shape
    cache = model.init_cache(rows, round_up(width, SLOT_MULTIPLE), width)
    place = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
    out = model.forward(model.embed(tokens), place, cache, Block.causal(jnp.ones(tokens.shape, bool), prompt=True))
    return cache.commit(out.block_kv, Write(position=place, count=jnp.full((rows,), width, jnp.int32)))


def _chosen(cache: Any, queries: Any) -> list[Any]:
    views = [cache.layer(i) for i in range(len(queries))]
    pairs = zip(views, queries, strict=True)
    return [view.policy.select(view, query) for view, query in pairs if isinstance(view, SelectedLayer)]
