"""The cases of a golden file: how each is decoded, and how its texts are compared with the stored ones."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from eval.exact.conditions import Condition, request_for
from eval.exact.decoded import Decoded, decode_all
from eval.exact.divergence import Rescorer, divergences
from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model, load
from jax_smash.methods import INT8, METHODS, RANDOM, DraftOptions, Method, SmashOptions, make_method
from jax_smash.methods.draft_options import READERS
from jax_smash.methods.shipped import is_shipped
from jax_smash.serve.request import Request

DTYPE = "float32"
"""Golden tokens are those of float32, in which near-ties are rare."""

TREE = DraftOptions(tree="tree-15")
"""A tree of a fixed size: an automatic one depends on the device."""

OPTIONS: dict[str, dict[str, Any]] = {
    "recycling": {"draft": TREE},
    "lookup": {"draft": TREE},
    "suffix": {"draft": TREE},
    "hybrid": {"draft": TREE},
    "draft-model": {"draft": DraftOptions(draft_model=INT8)},
    "hamburger": {"smash": SmashOptions(mode="exact")},
    "eagle": {"draft": TREE},
    "medusa": {"draft": TREE},
    "self-sparse": {"draft": DraftOptions(tree="chain-3", sparse="quest:budget=12,page_size=4,dense_layers=0")},
    "chimera": {"draft": TREE},
    "dflash": {"draft": TREE},
}
"""The options of each method; a method not named here takes none. Where no trained drafter comes with the package for a
model, a random one drafts."""

KEPT = tuple(name for name in METHODS if name not in ("eagle", "medusa", "chimera", "dflash", "self-sparse"))
"""Methods whose tokens and shapes are kept of `tiny`: for four others no trained drafter comes with the project for it,
and self-sparse drafts by arrays that are plain decoding's own."""

MODULES = {"hamburger": "auto"}
"""The modules that a method's model is loaded with. Where their folder holds a base too, the model is that base."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A method under a condition, which decodes all prompts."""

    method: str
    condition: Condition

    def __str__(self) -> str:
        """Names it, as in `recycling, batch 3, sampled, processors all`."""
        condition = self.condition
        return f"{self.method}, batch {condition.batch_size}, {condition.choice}, processors {condition.processors}"


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts from the texts that come with the project, and how they are continued.

    Attributes:
      num_prompts: prompts of every case.
      prompt_tokens: tokens of the longest; the others have two thirds of it or more.
      max_new_tokens: of each prompt.
      seed: of the first prompt; each one after has the next.
    """

    num_prompts: int
    prompt_tokens: int
    max_new_tokens: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where the text of a row first differs from the stored one.

    Attributes:
      row: number of the prompt.
      position: index among the new tokens.
      found, stored: the two tokens; None where a text had ended; why the texts ended, where the tokens are equal.
      gap: by how much the found token's processed logit, with its place's noise, exceeds the stored one's, in units of
        the largest logit's magnitude; None where there are no two such logits.
      near_tie: rounding may have chosen either token.
    """

    row: int
    position: int
    found: int | str | None
    stored: int | str | None
    gap: float | None
    near_tie: bool

    def __str__(self) -> str:
        """Names the place and the two tokens."""
        gap = "" if self.gap is None else f" (gap {self.gap:.1e})"
        return f"row {self.row}, position {self.position}: {_shown(self.found)}, stored {_shown(self.stored)}{gap}"


def conditions(
    batch_sizes: Sequence[int], processors: Sequence[str], choices: Sequence[str], *, method: str, spread: bool
) -> list[Condition]:
    """Returns the conditions that a method decodes under.

    Args:
      batch_sizes, processors, choices: values that are combined.
      method: by name.
      spread: only one condition. It depends on the method's place among all methods, so that every value occurs.
    """
    combined = [
        Condition(batch_size=b, processors=p, choice=c)  # type: ignore[arg-type]
        for b in batch_sizes
        for p in processors
        for c in choices
    ]
    # Steps of five reach each of the twelve usual conditions, and change all three values most of the time.
    return [combined[5 * list(METHODS).index(method) % len(combined)]] if spread else combined


class Decoder:
    """Decodes cases of one model, and judges what they differ in.

    Attributes:
      name: of the model, as `load` takes it.
      prompts: what is continued.
    """

    def __init__(self, name: str, prompts: Prompts):
        """Takes what all cases share; loads nothing."""
        self.name, self.prompts = name, prompts
        self._loaded = functools.lru_cache(maxsize=2)(self._load)

    def model(self, method: str) -> Model:
        """Returns the model that a method decodes.

        Raises:
          FileNotFoundError: there is no such model, or it has no modules for the method.
        """
        return self._loaded(MODULES.get(method))

    def method(self, case: Case) -> Method:
        """Returns the method of a case."""
        model, options = self.model(case.method), OPTIONS.get(case.method, {})
        if case.method in READERS and not is_shipped(case.method, model.name):
            options = options | {"draft": dataclasses.replace(options["draft"], drafter=RANDOM)}
        condition = case.condition
        return make_method(model, case.method, sampled=condition.sampled, log_probs=condition.log_probs, **options)

    def request(self, case: Case) -> Request:
        """Returns the prompts of a case with their options."""
        model, given = self.model(case.method), self.prompts
        tokens = shipped_prompts(model, given.num_prompts, longest=given.prompt_tokens)
        return request_for(case.condition, model, tokens, max_new_tokens=given.max_new_tokens, seed=given.seed)

    def decode(self, case: Case) -> tuple[list[Decoded], int]:
        """Returns a text per prompt, and how many programs were compiled for all of them.

        Programs that are kept from before are released: they may have been compiled under other settings of JAX.
        """
        PROGRAMS.forget()
        with jax.default_matmul_precision("highest"):
            decoded = decode_all(
                self.model(case.method),
                self.method(case),
                self.request(case),
                batch_size=case.condition.batch_size,
                max_new_tokens=self.prompts.max_new_tokens,
                log_probs=case.condition.log_probs,
            )
        return decoded, len(PROGRAMS)

    def differences(self, case: Case, decoded: Sequence[Decoded], stored: Sequence[Decoded]) -> list[Difference]:
        """Returns where the texts of a case first differ from stored ones. What follows in such a row is not compared.

        A difference is a near-tie where one plain forward over the text says of both tokens that rounding may have
        chosen them.
        """
        ended = [
            Difference(row, len(ours.tokens), ours.finish, theirs.finish, None, near_tie=False)
            for row, (ours, theirs) in enumerate(zip(decoded, stored, strict=True))
            if ours.tokens == theirs.tokens and ours.finish != theirs.finish
        ]
        if all(ours.tokens == theirs.tokens for ours, theirs in zip(decoded, stored, strict=True)):
            return ended
        with jax.default_matmul_precision("highest"):
            rescorer = Rescorer(
                self.model(case.method),
                self.request(case),
                dtype=DTYPE,
                max_new_tokens=self.prompts.max_new_tokens,
            )
            said, of_stored = rescorer.rescore(decoded, stored), rescorer.rescore(stored, decoded)
        apart = [
            Difference(
                row=d.prompt,
                position=d.position,
                found=None if d.token < 0 else d.token,
                stored=None if d.plain < 0 else d.plain,
                gap=d.gap,
                near_tie=d.near_tie and bool(of_stored[d.prompt].explained[d.position]),
            )
            for d in divergences(decoded, stored, said)
        ]
        return sorted(ended + apart, key=lambda difference: difference.row)

    def _load(self, modules: str | None) -> Model:
        return load(self.name, dtype=jnp.dtype(DTYPE), modules=modules)


def _shown(value: int | str | None) -> str:
    return "no token" if value is None else str(value)
