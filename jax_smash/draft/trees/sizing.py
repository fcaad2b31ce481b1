"""How large a tree pays: the best tree of each size, and the size that gives most tokens a second.

Everything here runs on the host, on NumPy. A *budget* counts drafted nodes; a forward reads one entry more, the root.
Rates `p[depth, rank]` are the probability that the child of this rank of a kept node at this depth is kept.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jax_smash.costs.curve import CostCurve
from jax_smash.draft.trees.tree import Topology, tree_in_order

Rates = Float[np.ndarray, "levels ranks"]

ACCEPTANCE_SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Acceptance that a ladder is made for, as multiples of what is expected."""

COST_SCALES = (1 / 3, 1.0, 3.0)
"""Costs of a drafted step that a ladder is made for, as multiples of the curve's."""


@dataclasses.dataclass(frozen=True)
class Rung:
    """What one budget promises.

    Attributes:
      budget: drafted nodes.
      expected_tokens: emitted a step and row, from 1.
      seconds: a step, drafting included.
    """

    budget: int
    expected_tokens: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of each row."""
        return self.expected_tokens / self.seconds


def places(levels: int, ranks: int) -> int:
    """Returns how many nodes a tree of these levels can have below its root."""
    return sum(ranks**depth for depth in range(1, levels + 1))


def likeliest_paths(p: Rates, budget: int) -> list[tuple[int, ...]]:
    """Returns the ranks that lead to each of the nodes that are kept most often, likeliest first.

    A node's probability is the product of the rates along its path, at most its parent's, so the likeliest nodes form a
    tree; and a tree's expected tokens are the sum over its nodes, so no tree of this budget has more.

    Raises:
      ValueError: a rate is no probability, or there are fewer places than the budget.
    """
    _check(p, budget)
    levels = p.shape[0]
    order = np.argsort(-p, axis=1, kind="stable")
    paths: list[tuple[int, ...]] = []
    # Each entry is a path, its negative probability first, with its parent's probability and its place among siblings.
    frontier = [(-float(p[0, order[0, 0]]), (int(order[0, 0]),), 1.0, 0)] if levels else []
    while len(paths) < budget:
        negative, path, above, place = heapq.heappop(frontier)
        paths.append(path)
        depth = len(path)
        if place + 1 < p.shape[1]:
            rank = int(order[depth - 1, place + 1])
            heapq.heappush(frontier, (-above * float(p[depth - 1, rank]), (*path[:-1], rank), above, place + 1))
        if depth < levels:
            rank = int(order[depth, 0])
            heapq.heappush(frontier, (negative * float(p[depth, rank]), (*path, rank), -negative, 0))
    return paths


def best_tree(p: Rates, budget: int, *, levels: int | None = None) -> Topology:
    """Returns the tree that emits most tokens a step among those of this many drafted nodes.

    Its nodes stand likeliest first, so its first nodes are the best tree of as many.

    Args:
      p: rates; as many levels as the tree may have.
      budget: drafted nodes.
      levels: room for deeper trees, as in `topology`; by default what the tree needs.

    Raises:
      ValueError: a rate is no probability, there are fewer places than the budget, or the tree is deeper than `levels`.
    """
    return tree_in_order(likeliest_paths(p, budget), levels=levels)


def most_expected(p: Rates, budget: int) -> float:
    """Returns the most tokens a step that any tree of this many drafted nodes emits, by dynamic programming.

    The specification of `best_tree`: slower, and without an argument about paths.

    Source: Chen et al. 2024, "Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding", section 3.1.
    Differs: a rate depends on the depth too, and a rank may be left out.

    Raises:
      ValueError: a rate is no probability, or there are fewer places than the budget.
    """
    _check(p, budget)
    levels, ranks = p.shape
    # below[m]: the most tokens that at most m nodes below a kept node add; nodes too many add nothing.
    below = np.zeros(budget + 1)
    for depth in reversed(range(levels)):
        # With the last ranks alone first: either this rank's child is left out, or it takes some of the nodes.
        best = np.zeros(budget + 1)
        for rank in reversed(range(ranks)):
            taken = best.copy()
            for nodes in range(1, budget + 1):
                own = p[depth, rank] * (1 + below[:nodes])
                taken[nodes] = max(best[nodes], (own + best[nodes - 1 :: -1]).max())
            best = taken
        below = best
    return 1.0 + float(below[budget])


def expected_tokens(p: Rates, tree: Topology) -> float:
    """Returns how many tokens a step emits with this tree: 1, and for each drafted node the product along its path.

    A node deeper or of a higher rank than the rates tell counts as never kept.
    """
    kept = np.ones(tree.nodes)
    levels, ranks = p.shape
    for node, (parent, depth, rank) in enumerate(
        zip(*map(np.asarray, (tree.parent, tree.depth, tree.rank)), strict=True)
    ):
        if node:
            known = depth <= levels and rank < ranks
            kept[node] = kept[parent] * p[depth - 1, rank] if known else 0.0
    return float(kept.sum())


def weigh(p: Rates, cost: CostCurve, budgets: Sequence[int], *, drafting_s: float = 0.0) -> tuple[Rung, ...]:
    """Returns what the best tree of each budget promises.

    Args:
      p: rates of the drafter.
      cost: of a forward, for the batch that decodes.
      budgets: drafted nodes; 0 is plain decoding.
      drafting_s: seconds a step for drafting and for what is learned from it, where something is drafted.

    Raises:
      ValueError: a rate is no probability, a budget has no places or is outside the curve.
    """
    return tuple(
        Rung(
            budget=budget,
            expected_tokens=1.0 + sum(float(np.prod(_along(p, path))) for path in likeliest_paths(p, budget)),
            seconds=cost.at(budget + 1) + (drafting_s if budget else 0.0),
        )
        for budget in budgets
    )


def choose_budget(p: Rates, cost: CostCurve, ladder: Sequence[int], *, drafting_s: float = 0.0) -> Rung:
    """Returns the budget of a ladder that gives most tokens a second; the smaller of two equal ones.

    All of them are compared: a cost curve has shelves, so that tokens a second may fall and rise again.

    Args:
      p, cost, drafting_s: as in `weigh`.
      ladder: budgets, 0 among them.

    Raises:
      ValueError: as `weigh` says, or 0 is not among the budgets.
    """
    if 0 not in ladder:
        raise ValueError(f"a ladder must have a budget of 0, plain decoding; got {list(ladder)}")
    return max(weigh(p, cost, sorted(ladder), drafting_s=drafting_s), key=lambda rung: rung.tokens_per_second)


def choose_ladder(
    p: Rates, cost: CostCurve, *, most: int | None = None, rungs: int = 3, drafting_s: float = 0.0, tile: int = 1
) -> tuple[int, ...]:
    """Returns the budgets to compile: 0, and those that together lose least where acceptance or costs are others.

    Candidates are the measured points of the curve. A ladder is judged by its worst case over `ACCEPTANCE_SCALES` and
    `COST_SCALES`: its best tokens a second over the best of all candidates. Among equal ladders the one of fewer and
    smaller budgets wins.

    Args:
      p, cost, drafting_s: as in `weigh`.
      most: no budget is larger; None for as large as the curve and the rates allow.
      rungs: budgets at most, 0 included.
      tile: a tree's forward has a multiple of so many entries, the root included.

    Raises:
      ValueError: `rungs` is less than 1, or as `weigh` says.
    """
    if rungs < 1:
        raise ValueError(f"rungs must be at least 1; got {rungs}")
    room = places(*p.shape) if most is None else min(most, places(*p.shape))
    budgets = [0, *(n - 1 for n in cost.entries if 1 < n <= room + 1 and not n % tile)]
    rungs_by_scale = [weigh(_scaled(p, scale), cost, budgets, drafting_s=drafting_s) for scale in ACCEPTANCE_SCALES]
    expected = np.array([[rung.expected_tokens for rung in found] for found in rungs_by_scale])
    seconds = np.array([rung.seconds for rung in rungs_by_scale[0]])
    # A step that drafts takes no less than a plain one, whatever the scale.
    scaled = np.maximum(seconds[0], np.outer(COST_SCALES, seconds))
    scaled[:, 0] = seconds[0]
    speed = (expected[:, None] / scaled[None]).reshape(-1, len(budgets))
    speed /= speed.max(axis=1, keepdims=True)
    best: tuple[int, ...] = (0,)
    worst_case = speed[:, 0].min()
    for size in range(1, min(rungs, len(budgets))):
        for chosen in itertools.combinations(range(1, len(budgets)), size):
            worst = speed[:, (0, *chosen)].max(axis=1).min()
            if worst > worst_case + 1e-9:
                best, worst_case = (0, *(budgets[i] for i in chosen)), worst
    return best


def _scaled(p: Rates, scale: float) -> Rates:
    """Returns rates times a scale, of which the children of a node never have more than 1 together."""
    scaled = np.asarray(p, np.float64) * scale
    return scaled / np.maximum(scaled.sum(axis=1, keepdims=True), 1.0)


def _along(p: Rates, path: tuple[int, ...]) -> Float[np.ndarray, "depth"]:
    return p[np.arange(len(path)), np.asarray(path, np.int64)]


def _check(p: Rates, budget: int) -> None:
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"rates must be from 0 to 1; got {p.min()} to {p.max()}")
    if not 0 <= budget <= places(*p.shape):
        raise ValueError(
            f"budget must be from 0 to {places(*p.shape)}, the places of {p.shape[0]} levels and {p.shape[1]} ranks; "
            f"got {budget}"
        )
