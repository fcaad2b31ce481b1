"""What drafts are worth at a stated acceptance: tokens a step, and the tree that pays most."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence

import numpy as np

from jax_smash.draft.lookahead import Lookahead
from jax_smash.draft.trees.acceptance import PRIOR_FALL, prior_rates
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.sizing import Rates, likeliest_paths
from jax_smash.draft.trees.templates import LEVELS, RANKS, named_tree, sized
from jax_smash.draft.trees.tree import Topology
from jax_smash.ladder import MOST_ROWS, TILE, Reach
from jax_smash.methods import OPTIONS, REACH
from jax_smash.methods.dflash import RANKS as DFLASH_RANKS
from jax_smash.methods.self_sparse import CHAIN
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.medusa import MedusaConfig

Paths = Sequence[tuple[int, ...]]
"""Drafted nodes, each by the ranks that lead to it."""

CHAINS = tuple(range(1, 9))
"""Drafted tokens of the chains that are compared where a method's drafter works for each."""

TREES = (7, 15, 31, 63)
"""Drafted nodes of the trees that are compared there too."""

DEEPEST = {"medusa": MedusaConfig.num_heads, "chimera": ChimeraConfig.decoding_heads, "dflash": 15}
"""Tokens that a drafter of the usual size drafts in a row at most."""

REACHES = REACH | {"self-sparse": CHAIN, "dflash": Reach(ranks=DFLASH_RANKS, levels=DEEPEST["dflash"])}
"""How far trees of a size may reach whose shape is the drafter's; of other methods `tree-N` has one shape."""

GROUPS = 4
"""Tokens of a group at most, the usual size of HAMburger's modules."""

LOOKAHEAD, LOOKED_AHEAD = "lookahead", Lookahead()
"""A method whose tree is its own."""

GRID = (0.2, 0.4, 0.6, 0.8, 0.9)
"""Acceptances at which a gain is told beside the stated one."""


@dataclasses.dataclass(frozen=True)
class Drafted:
    """What a tree is worth.

    Attributes:
      tree: its name.
      nodes: entries a row that a step checks, the root included.
      levels: of drafted nodes.
      tokens: that a step emits a row, from 1.
      seconds: of a step.
    """

    tree: str
    nodes: int
    levels: int
    tokens: float
    seconds: float

    @property
    def seconds_a_token(self) -> float:
        """Of a row."""
        return self.seconds / self.tokens


def stated_rates(acceptance: float, levels: int, ranks: int, *, fall: float = PRIOR_FALL) -> Rates:
    """Returns rates with a stated acceptance of first children, the same at every depth.

    Each next rank has `fall` of the one before, or less where all ranks together would be more than certain.

    Args:
      acceptance: from 0 to 1.
      levels, ranks: of trees.
      fall: at most.
    """
    return prior_rates(levels, ranks, first=acceptance, fall=min(fall, 1.0 - acceptance))


def candidates(method: str, tree: str, acceptance: float, *, tiled: bool) -> dict[str, Paths]:
    """Returns the drafted nodes of the trees that are compared, by name: the named one alone, or those of the method.

    Args:
      method: that drafts.
      tree: its name, or `auto`.
      acceptance: for whose rates trees are made.
      tiled: forwards have a multiple of 8 entries.
    """
    reach = REACHES.get(method)
    if tree != "auto":
        return {tree: _tree(reach, acceptance, tree)}
    if method in REACH:
        counts = range(TILE, MOST_ROWS + 1, TILE) if tiled else (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, MOST_ROWS)
        names = [f"tree-{n - 1}" for n in counts]
    else:
        deepest = reach.levels if reach else DEEPEST.get(method, CHAINS[-1])
        names = [f"chain-{n}" for n in CHAINS if n <= deepest]
        names += [f"tree-{n}" for n in TREES if reach is None or reach.ranks > 1]
    # Plain decoding is one of the choices, but a draft model must draft.
    plain = () if method == "draft-model" else ("off",)
    return {name: _tree(reach, acceptance, name) for name in (*plain, *names)}


def drafted(
    method: str, tree: str, acceptance: float, cost: Callable[[int, int], float], *, tiled: bool
) -> list[Drafted]:
    """Returns what each tree of a method is worth.

    Args:
      method, tree, acceptance, tiled: as in `candidates`.
      cost: seconds of a step by its nodes, the root included, and its levels of drafted nodes.
    """
    worth = _worth(method, tree, acceptance, tiled)
    return [Drafted(name, nodes, levels, tokens, cost(nodes, levels)) for name, nodes, levels, tokens in worth]


@functools.cache
def _worth(method: str, tree: str, acceptance: float, tiled: bool) -> tuple[tuple[str, int, int, float], ...]:
    """Returns name, nodes, levels and expected tokens of each tree; they are the same for every batch."""
    found = []
    for name, paths in candidates(method, tree, acceptance, tiled=tiled).items():
        # Nodes deeper than the drafter drafts are never kept.
        levels = min(max(map(len, paths), default=0), DEEPEST.get(method, len(paths)))
        ranks = max((rank for path in paths for rank in path), default=0) + 1
        rates = stated_rates(acceptance, max(levels, 1), ranks, fall=_fall(method))
        kept = [float(np.prod(rates[range(len(path)), path])) for path in paths if len(path) <= levels]
        found.append((name, 1 + len(paths), levels, 1.0 + sum(kept)))
    return tuple(found)


def best(trees: Sequence[Drafted]) -> Drafted:
    """Returns the tree that gives most tokens a second, the smaller of equal ones."""
    return min(trees, key=lambda x: (x.seconds_a_token, x.nodes))


def group_tokens(acceptance: float, longest: int = GROUPS) -> float:
    """Returns the tokens of a group that goes on with this probability after each of them."""
    return float(sum(acceptance**i for i in range(longest)))


def drafts_trees(method: str) -> bool:
    """Whether a method's steps check a tree whose size can be chosen."""
    return method in OPTIONS and method != LOOKAHEAD


def _tree(reach: Reach | None, acceptance: float, name: str) -> Paths:
    """Returns a tree's drafted nodes. Arrays of it are made only where a template or a file tells its shape."""
    nodes = sized(name)
    if confident(name) is not None:
        raise ValueError(f"a tree whose shape follows the drafter cannot be planned; got {name}")
    if nodes is None:
        made = re.fullmatch(r"chain-(\d+)", name)
        return [(0,) * n for n in range(1, int(made[1]) + 1)] if made else _paths(named_tree(name))
    if reach is None:
        return likeliest_paths(prior_rates(LEVELS, RANKS), nodes)
    rates = stated_rates(acceptance, min(reach.levels, nodes), reach.ranks, fall=reach.fall)
    return likeliest_paths(rates, nodes)


def _paths(tree: Topology) -> Paths:
    """Returns the ranks that lead to each node below the root."""
    found: list[tuple[int, ...]] = [()]
    for parent, rank in list(zip(np.asarray(tree.parent), np.asarray(tree.rank), strict=True))[1:]:
        found.append((*found[int(parent)], int(rank)))
    return found[1:]


def _fall(method: str) -> float:
    return REACHES[method].fall if method in REACHES else PRIOR_FALL
