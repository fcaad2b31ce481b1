"""The rows of an exactness report: a method's text under one condition, as it is or tampered with."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eval.drafting.told_trees import told_tree
from eval.drafting.trained import Trained
from eval.exact.conditions import Condition, request_for
from eval.exact.decoded import Decoded, Processors, decode_all
from eval.exact.divergence import ROUNDING, Rescorer, summary
from eval.exact.tampered import FirstChildren, FlippedBit, Padded, Reordered, SkippedAtNodes, tampered
from eval.reports.told_paths import told_path
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.tree import Topology
from jax_smash.loading import Model
from jax_smash.methods import DraftOptions, Method, SmashOptions, make_method
from jax_smash.methods.drafted import INT8
from jax_smash.protocols import Drafter
from jax_smash.sampling import RepetitionPenalty
from jax_smash.serve.request import Request

AS_IT_IS = "as it is"
FIRST_CHILDREN = "first children"
SWAPPED = "siblings swapped"
SKIPPED = "penalty skipped"

EQUIVALENT: dict[str, Callable[[Drafter], Drafter]] = {
    "padded": Padded,
    SWAPPED: Reordered,
    FIRST_CHILDREN: FirstChildren,
}
"""Changes of a tree that must change neither text nor forwards; of first children alone, against the chain's."""

DRAFT_MODEL, HAMBURGER, SELF_SPARSE, HYBRID = "draft-model", "hamburger", "self-sparse", "hybrid"

GROUPS = "auto"
"""The one tree of method hamburger: a chain as long as its groups may be."""

NEED_SIBLINGS = (SWAPPED, FIRST_CHILDREN)

NO_CHAINS = ("lookahead", HYBRID, "dflash")
"""Methods whose drafts depend on how many nodes a tree has, so that first children are not the chain's: Lookahead has
as many n-grams, a hybrid divides the nodes among its drafters, and DFlash's trees grow where it is certain. Their
texts must be equal all the same."""

CONTROLS: dict[str, Callable[[Drafter], Drafter]] = {"bit flipped": FlippedBit, SKIPPED: lambda drafter: drafter}
"""Faults that the comparison must find."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What one row decodes.

    Attributes:
      way: as it is, or how the tree is tampered with.
      method: by name.
      tree: by name; None for plain decoding.
      condition: batch and options.
      drafter: label of the trained drafter; None for a method without one.
      draft_model: what a model drafts with, a model's name or int8; None of other methods, and of self-sparse for the
        target's own weights.
    """

    way: str
    method: str
    tree: str | None
    condition: Condition
    drafter: str | None = None
    draft_model: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it apart, as a report holds it."""
        condition = self.condition
        drafts = None if self.draft_model is None else told_path(self.draft_model)
        return (
            self.way,
            " ".join(part for part in (self.method, self.drafter, drafts) if part is not None),
            "–" if self.tree is None else told_tree(self.tree),
            str(condition.batch_size),
            condition.processors,
            condition.choice,
        )


class Study:
    """Decodes cases and compares each with what it must equal.

    Attributes:
      model: the model.
      prompts: tokens of each.
      drafters: trained ones, by label.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[list[int]],
        *,
        dtype: str,
        max_new_tokens: int,
        seed: int,
        stop: Sequence[str],
        regex: str,
        sparse: str | None = None,
        smash: SmashOptions = SmashOptions(mode="exact"),  # noqa: B008 - frozen
        drafters: Sequence[Trained] = (),
    ):
        """Takes what all cases share; decodes nothing."""
        self.drafters = {drafter.label: drafter for drafter in drafters}
        # Of a few hundred megabytes at most, and read for every row.
        self._loaded = functools.lru_cache(maxsize=None)(lambda label: self.drafters[label].load(jnp.dtype(dtype)))
        self._sparse, self._smash = sparse, smash
        self.model, self.prompts = model, prompts
        self._dtype, self._new = dtype, max_new_tokens
        self._options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": seed, "stop": stop, "regex": regex}
        # What rows are compared with stays for the next few; a long run has more than memory should hold.
        self._decoded = functools.lru_cache(maxsize=4)(self._decode)
        self._request = functools.lru_cache(maxsize=None)(self._make_request)
        # One for all batch sizes: a text that two of them give is read again once.
        self._rescorer = functools.lru_cache(maxsize=None)(self._make_rescorer)

    def checks(self, case: Case, *, equivalents: bool = True, faults: bool = True) -> list[str]:
        """Returns the ways in which a method's tree can be tampered with.

        Args:
          case: of the tree as it is.
          equivalents: those that must change nothing too.
          faults: those that must be found out too.

        Raises:
          ValueError: the method does not take the tree.
        """
        ladder = self._method(case).memory["trees"].ladder
        drafted = [np.asarray(topology.parent)[1:] for topology in ladder if topology.nodes > 1]
        if not drafted:
            return []
        siblings = any(len(set(parent.tolist())) < len(parent) for parent in drafted)
        # A draft model keeps what it read of each node by the node's place.
        fixed = (SWAPPED,) if case.method == DRAFT_MODEL else ()
        same = EQUIVALENT if equivalents else {}
        equivalent = [way for way in same if (siblings or way not in NEED_SIBLINGS) and way not in fixed]
        controls = CONTROLS if faults else {}
        return equivalent + [way for way in controls if way != SKIPPED or case.condition.processors == "all"]

    def row(self, case: Case) -> dict[str, Any]:
        """Returns the figures of a case, and whether they are as they must be."""
        began, compiled = time.perf_counter(), PROGRAMS.seconds
        reference = self._decoded(self._compared_with(case))
        must = "differ" if case.way in CONTROLS else "equal"
        if must == "differ":
            figures = self._found_out(case, reference)
            passed = figures["beyond_near_ties"] > 0
        else:
            figures = self._compared(case, self._decoded(case), reference)
            passed = self._equal(case, figures)
        return {
            "way": case.way,
            "method": case.method,
            "drafter": case.drafter,
            "draft_model": case.draft_model,
            "sparse": self._sparse if case.method == SELF_SPARSE else None,
            "tree": None if case.tree is None else told_tree(case.tree),
            **dataclasses.asdict(case.condition),
            **figures,
            "must": must,
            "passed": passed,
            "seconds": time.perf_counter() - began,
            "compile_seconds": PROGRAMS.seconds - compiled,
            "key": case.key,
        }

    def _compared(self, case: Case, decoded: Sequence[Decoded], reference: Sequence[Decoded]) -> dict[str, Any]:
        """Returns the figures of texts, those of the first prompts or of all."""
        beside = reference[: len(decoded)]
        said = self._rescorer(dataclasses.replace(case.condition, batch_size=1)).rescore(decoded, beside)
        figures = summary(decoded, beside, said, tolerance=ROUNDING[self._dtype])
        diverged = {d["prompt"] for d in figures["listed"]}
        figures["forwards_differing"] = sum(
            a.forwards != b.forwards for i, (a, b) in enumerate(zip(decoded, beside, strict=True)) if i not in diverged
        )
        return figures

    def _found_out(self, case: Case, reference: Sequence[Decoded]) -> dict[str, Any]:
        """Returns the figures of a fault: of the prompts up to the batch in which it shows, or of all."""
        figures: dict[str, Any] = {}

        def shows(decoded: Sequence[Decoded]) -> bool:
            nonlocal figures
            figures = self._compared(case, decoded, reference)
            return figures["beyond_near_ties"] > 0

        self._decode(case, until=shows)
        return figures

    def _equal(self, case: Case, figures: dict[str, Any]) -> bool:
        wrong = [figures[name] for name in ("beyond_near_ties", "log_probs_differing", "finish_differing")]
        if self._dtype == "float32":
            wrong.append(figures["unexplained"])
        # An int8 draft model rounds what it multiplies; the number of rows that a level has may tip it either way.
        tipped = case.draft_model == INT8
        own_shape = case.method in NO_CHAINS or confident(case.tree or "") is not None
        if case.way in EQUIVALENT and not (case.way == FIRST_CHILDREN and (tipped or own_shape)):
            wrong.append(figures["forwards_differing"])
        return not any(wrong)

    def _compared_with(self, case: Case) -> Case:
        if case.way == FIRST_CHILDREN:
            ladder = self._method(case).memory["trees"].ladder
            depth = max(_first_children(topology) for topology in ladder)
            return dataclasses.replace(case, way=AS_IT_IS, tree=f"chain-{depth}")
        if case.way in EQUIVALENT:
            return dataclasses.replace(case, way=AS_IT_IS)
        return Case(AS_IT_IS, "ar", None, case.condition)

    def _decode(self, case: Case, until: Callable[[Sequence[Decoded]], bool] | None = None) -> list[Decoded]:
        method = self._method(case)
        if case.way != AS_IT_IS:
            method = tampered(method, (EQUIVALENT | CONTROLS)[case.way])
        return decode_all(
            self.model,
            method,
            self._request(dataclasses.replace(case.condition, batch_size=1)),
            batch_size=case.condition.batch_size,
            max_new_tokens=self._new,
            log_probs=case.condition.log_probs,
            change=_skip_repetition if case.way == SKIPPED else None,
            until=until,
        )

    def _method(self, case: Case) -> Method:
        name, condition = case.method, case.condition
        given: dict[str, Any] = {
            "draft_model": case.draft_model,
            "sparse": self._sparse if name == SELF_SPARSE else None,
            "drafter": None if case.drafter is None else self._loaded(case.drafter),
        }
        draft = DraftOptions() if case.tree is None else DraftOptions(tree=case.tree, **given)
        return make_method(
            self.model,
            name,
            sampled=condition.sampled,
            log_probs=condition.log_probs,
            draft=draft,
            smash=self._smash if name == HAMBURGER else SmashOptions(),
        )

    def _make_request(self, condition: Condition) -> Request:
        return request_for(condition, self.model, self.prompts, **self._options)

    def _make_rescorer(self, condition: Condition) -> Rescorer:
        return Rescorer(self.model, self._request(condition), dtype=self._dtype, max_new_tokens=self._new)


def _first_children(topology: Topology) -> int:
    """Returns how many nodes follow the root where each is the first child of the one before."""
    parent, node, depth = np.asarray(topology.parent), 0, 0
    while len(children := np.flatnonzero(parent[node + 1 :] == node)):
        node, depth = node + 1 + int(children[0]), depth + 1
    return depth


def _skip_repetition(processors: Processors) -> Processors:
    return tuple(SkippedAtNodes(processor=p) if isinstance(p, RepetitionPenalty) else p for p in processors)
