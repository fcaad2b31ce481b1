"""What share of the slots with most attention a policy reads, over held-out texts."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.reports.report import progress
from eval.scores.engine import Engine
from eval.scores.intervals import ratio_bootstrap
from eval.scores.paired import difference_of_means
from eval.sparse.truth import Held, held_of_top
from eval.sparse.watched import Rule, watch, watched
from eval.tasks.outcome import Outcome
from eval.tasks.selection import FIRST_LAYER, FIRST_POSITION
from jax_smash.loading import Model
from jax_smash.sparse import Selecting, SparseDef

TASK = "recall"


@dataclasses.dataclass(frozen=True)
class RecallSet:
    """Texts over which the choices of a policy are compared with true attention.

    Attributes:
      names: tell the texts apart.
      texts: whose tokens are read, the first `length` of each.
      length: tokens of a text.
      share: of the slots: those with most attention that count.
      prompt: first tokens, which are read as a prompt where the engine reads contexts so; the choices behind count.
      task: its name.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    length: int
    share: float
    prompt: int = FIRST_POSITION
    task: str = TASK

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns recall by query head and by group, of layers from 1 on and positions from `prompt` on.

        True attention is that of the query that the policy chose for, over all slots that the row has committed. Layers
        that are read whole have a recall of 1. Of a text the mean over layers, heads and steps counts.

        Raises:
          ValueError: a text is too short, or the policy keeps its own cache.
        """
        tokens = [engine.encode_whole(text)[: self.length] for text in self.texts]
        for name, text in zip(self.names, tokens, strict=True):
            if len(text) < self.length:
                raise ValueError(f"{name} must have at least {self.length} tokens to tell recall; got {len(text)}")
        layers = engine.model.config.num_layers if engine.model.config else 0
        found = choices_seen(
            engine.model,
            held_of_top(self.share),
            np.asarray(tokens, np.int32),
            prompt=self.prompt if engine.by_steps else 0,
            batch_size=engine.batch_size,
        )
        if found is None:
            whole = [1.0] * len(tokens)
            return [self._outcome(metric, whole, {}) for metric in ("recall", "group_recall")]
        skipped = 0 if engine.by_steps else self.prompt
        behind = {i: jax.tree.map(lambda x: x[skipped:].astype(np.float64), layer) for i, layer in found.items()}
        held: list[Held | None] = [behind.get(i) for i in range(layers)]
        counted = held[FIRST_LAYER:]

        def by_text(name: str) -> list[float]:
            each = [np.ones(len(tokens)) if h is None else getattr(h, name).mean((0, 2)) for h in counted]
            return [float(score) for score in np.mean(each, axis=0)]

        more = {
            "recent_recall": float(np.mean(by_text("recent"))),
            "kept": float(np.mean(by_text("kept"))),
            "by_layer": [1.0 if h is None else float(h.by_head.mean()) for h in held],
        }
        return [
            self._outcome("recall", by_text("by_head"), more),
            self._outcome("group_recall", by_text("by_group"), more),
        ]

    def _outcome(self, metric: str, scores: Sequence[float], more: dict[str, Any]) -> Outcome:
        return Outcome(
            task=self.task,
            metric=metric,
            settings={"length": self.length, "of_top": self.share, "first_position": self.prompt},
            n=len(scores),
            score=sum(scores) / len(scores),
            interval=ratio_bootstrap(scores, [1] * len(scores)),
            examples=[{"example": n, "score": s} for n, s in zip(self.names, scores, strict=True)],
            compare=difference_of_means,
            more=more,
        )


def choices_seen(model: Model, rule: Rule, tokens: Any, *, prompt: int, batch_size: int) -> dict[int, Any] | None:
    """Returns what a rule makes of the choices of a sparse model over texts of equal length, by layer `[T', B, …]`.

    Args:
      model: from `sparsified`, or one without a policy.
      rule: of each choice.
      tokens: an integer array `[B, T]`.
      prompt: first tokens that are read at once.
      batch_size: texts that are read together.

    Returns:
      An entry for each layer that chooses; None where none does.

    Raises:
      ValueError: the policy does not choose among slots, or rotary angles depend on the length of the text.
    """
    definition = model.definition
    if not isinstance(definition, SparseDef):
        return None
    policy = definition.policy
    if not isinstance(policy, Selecting):
        raise ValueError(
            f"{type(policy).__name__} does not choose among the slots of a cache: its choices have no recall"
        )
    config = model.config
    assert config is not None
    if config.follows_length:
        raise ValueError(f"the rotary embedding of {model.name} must not depend on the length of the text")
    choosing = [i for i, plan in enumerate(policy.plans(config, tokens.shape[1])) if plan is not None]
    if not choosing:
        return None
    seen = _program(dataclasses.replace(definition, policy=watched(policy, rule)), prompt)
    params, parts = model.params["target"], []
    with progress(TASK, len(tokens)) as advance:
        for first in range(0, len(tokens), batch_size):
            batch = tokens[first : first + batch_size]
            rows = np.zeros((batch_size, tokens.shape[1]), np.int32)
            rows[: len(batch)] = batch
            lengths = np.full((batch_size,), tokens.shape[1], np.int32)
            made = seen(params, jnp.asarray(rows), jnp.asarray(lengths))
            parts.append(_first_rows(made, len(batch)))
            for _ in batch:
                advance()
    whole = jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1), *parts)
    return dict(zip(choosing, whole, strict=True))


def _first_rows(made: Any, count: int) -> Any:
    return jax.tree.map(lambda x: np.asarray(x)[:, :count], made)


@functools.lru_cache(maxsize=1)
def _program(model_def: Any, prompt: int) -> Any:
    return jax.jit(functools.partial(watch, model_def, prompt=prompt))
