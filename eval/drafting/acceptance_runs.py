"""Answers of a model under a method, and how many tokens each forward of the target gave."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eval.prompts.question_sets import Question, turn_tokens
from eval.scores.intervals import ratio_bootstrap
from eval.tasks.variety import goes_in_circles
from jax_smash.decode.draft_report import drafted_rows
from jax_smash.decode.drafts import Trees
from jax_smash.draft.trees.tree import Topology
from jax_smash.loading import Model
from jax_smash.methods import Method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import QUIET_STEPS
from jax_smash.serve.session import Session
from jax_smash.sharding import on_host

NEVER = 2**20
"""Rank that no drafter proposes."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of one turn of one question.

    Attributes:
      category: of the question.
      tokens: that were emitted, a stop token included.
      text: of them, special tokens left out.
      forwards: of the target, prefill left out.
      tried, kept: counts by depth, as `Drafted` has them; empty in plain decoding.
      nodes: drafted nodes of a step.
      prompt: tokens that were read before it.
    """

    category: str
    tokens: list[int]
    text: str
    forwards: int
    tried: list[int] = dataclasses.field(default_factory=list)
    kept: list[int] = dataclasses.field(default_factory=list)
    nodes: int = 0
    prompt: list[int] = dataclasses.field(default_factory=list)

    @property
    def degenerate(self) -> bool:
        """Whether the text goes in circles."""
        return goes_in_circles(self.tokens)


@dataclasses.dataclass(frozen=True)
class Asking:
    """How questions are put.

    Attributes:
      model: that answers.
      slots: capacity of the cache a row.
      max_new_tokens: of an answer.
      chat: turns are put into the chat template.
      batch_size: questions that are answered together.
      seed: of all questions.
    """

    model: Model
    slots: int
    max_new_tokens: int
    chat: bool = False
    batch_size: int = 1
    seed: int = 0

    def answers(
        self,
        method: Method,
        questions: Sequence[Question],
        *,
        temperature: float = 0.0,
        memory: Any = None,
        carry: bool = True,
    ) -> tuple[list[Answer], Any]:
        """Asks all questions; returns every turn's answer in their order, and what the drafter knows then.

        One question at a time, they are asked in their order. Of batches, which have as many turns as their longest
        question, those of several turns come first.

        Args:
          method: how to decode.
          questions: in order.
          temperature: 0 takes the likeliest token.
          memory: what the drafter knows at first; None for what the method begins with.
          carry: what is learned from a batch is known to the next, as `generate` has it; else each begins with
            `memory`, and that is what is returned.
        """
        found: dict[int, list[Answer]] = {}
        order = list(range(len(questions)))
        if self.batch_size > 1:
            order.sort(key=lambda i: -len(questions[i].turns))
        for first in range(0, len(order), self.batch_size):
            some = order[first : first + self.batch_size]
            answers, learned = self._batch(method, [questions[i] for i in some], temperature, memory)
            memory = learned if carry else memory
            found |= dict(zip(some, answers, strict=True))
        return [answer for i in range(len(questions)) for answer in found[i]], memory

    def _batch(
        self, method: Method, questions: Sequence[Question], temperature: float, memory: Any
    ) -> tuple[list[list[Answer]], Any]:
        found: list[list[Answer]] = [[] for _ in questions]
        for turn in range(max(len(q.turns) for q in questions)):
            said = [[answer.text for answer in answers] for answers in found]
            prompts = [
                turn_tokens(self.model, q.turns[: turn + 1], said[i], chat=self.chat) if turn < len(q.turns) else []
                for i, q in enumerate(questions)
            ]
            session = self._session(method, temperature, memory)
            session.read(prompts + [[]] * (self.batch_size - len(prompts)))
            while session.run(QUIET_STEPS):
                pass
            memory = session.state.shared.memory
            for i, answer in self._read(session, questions):
                if prompts[i]:
                    found[i].append(dataclasses.replace(answer, prompt=prompts[i]))
        return found, memory

    def _session(self, method: Method, temperature: float, memory: Any) -> Session:
        return Session(
            self.model,
            method,
            slots=self.slots,
            max_new_tokens=self.max_new_tokens,
            sampling=[SamplingOptions(temperature=temperature)] * self.batch_size,
            seeds=[self.seed] * self.batch_size,
            memory=memory,
        )

    def _read(self, session: Session, questions: Sequence[Question]) -> list[tuple[int, Answer]]:
        outputs, forwards = session.outputs(), on_host(session.state.rows.forwards)
        drafted = drafted_rows(session.state, tree="", source="")
        found = []
        for row, question in enumerate(questions):
            counts = (
                {}
                if drafted is None
                else {"tried": drafted[row].tried, "kept": drafted[row].kept, "nodes": drafted[row].nodes}
            )
            text = self.model.tokenizer.decode(outputs[row], skip_special_tokens=True)
            answer = Answer(
                category=question.category, tokens=outputs[row], text=text, forwards=int(forwards[row]), **counts
            )
            found.append((row, answer))
        return found


def mean_accepted_tokens(answers: Sequence[Answer]) -> float | None:
    """Returns (new tokens − 1) / decode forwards, each summed over answers; None where no decode forward was made.

    The prefill's token is left out, and so is what a forward gave past a stop or the limit.
    """
    forwards = sum(a.forwards for a in answers)
    return sum(len(a.tokens) - 1 for a in answers) / forwards if forwards else None


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the figures of some answers, those that go in circles left out and counted."""
    kept = [a for a in answers if not a.degenerate]
    tried, hit = (
        np.array([getattr(a, name) for a in kept]).sum(0).tolist() if kept else [] for name in ("tried", "kept")
    )
    interval = ratio_bootstrap([len(a.tokens) - 1 for a in kept], [a.forwards for a in kept]) if kept else None
    return {
        "answers": len(kept),
        "degenerate": len(answers) - len(kept),
        "new_tokens": sum(len(a.tokens) for a in kept),
        "forwards": sum(a.forwards for a in kept),
        "mean_accepted_tokens": mean_accepted_tokens(kept),
        "interval": None if interval is None else dataclasses.asdict(interval),
        "acceptance_by_depth": [k / t if t else None for t, k in zip(tried, hit, strict=True)],
        "tried_by_depth": tried,
    }


def by_category(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Returns all answers under `all`, and, where there are several categories, those of each under its name."""
    names = list(dict.fromkeys(a.category for a in answers))
    groups = {"all": list(answers)}
    if len(names) > 1:
        groups |= {name: [a for a in answers if a.category == name] for name in names}
    return groups


def with_tree(method: Method, tree: Topology) -> Method:
    """Returns a drafting method that always drafts one tree."""
    trees = Trees(ladder=(tree,), choice=jnp.zeros((), jnp.int32))
    strategy = dataclasses.replace(method.strategy, levels=tree.levels)  # type: ignore[type-var]
    return dataclasses.replace(method, strategy=strategy, memory=method.memory | {"trees": trees})


def with_drafter(method: Method, **changes: Any) -> Method:
    """Returns a drafting method whose drafter has some fields changed."""
    drafter = dataclasses.replace(method.strategy.drafter, **changes)  # type: ignore[attr-defined]
    return dataclasses.replace(method, strategy=dataclasses.replace(method.strategy, drafter=drafter))  # type: ignore


def cut(tree: Topology, *, width: int | None = None, depth: int | None = None) -> tuple[Topology, int]:
    """Returns a tree in which only some nodes are drafted, and how many of those there are below the root.

    The tree keeps its size, so every cut of it runs the program of the whole.

    Args:
      tree: of a drafter that proposes by rank.
      width: children of each node, the likeliest first; None for all.
      depth: levels; None for all.
    """
    wide = NEVER if width is None else width
    deep = tree.levels if depth is None else depth
    keeps = (tree.rank < wide) & (tree.depth <= deep)
    rank = jnp.where(keeps, tree.rank, NEVER)
    parent, kept = np.asarray(tree.parent), np.asarray(keeps).copy()
    for node in range(1, tree.nodes):
        kept[node] &= kept[parent[node]]
    return replace(tree, rank=rank), int(kept.sum()) - 1
