"""Trees by name: `off`, `chain-N`, `tree-N`, Token Recycling's without one node, and a user's own from a file."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.tree import Topology, chain, topology, tree_from_ranks, tree_in_order

LEVELS, RANKS = 6, 8
"""The largest depth of `tree-N`, and the most children of one of its nodes; the reach of a method may set others."""

RECYCLING_CHILDREN = (
    ":8 0:8 1:4 2:3 3:2 4:1 5:1 6:1 7:1 00:8 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2 11:1 20:1 30:1 40:1 50:1 "
    "000:5 001:2 002:1 003:1 004:1 010:1 020:1 100:1 200:1 300:1 0000:3 0001:1 0002:1 0010:1 0100:1 1000:1 "
    "00000:2 00010:1"
)
"""The template: how many children the node has that these ranks lead to."""


SELDOM_KEPT = (0, 7, 0)
"""The ranks that lead to a node of the template that is hardly ever kept."""


def published_recycling_tree() -> Topology:
    """Returns the static tree that Token Recycling was published with: 80 nodes below the root, 6 levels.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling", appendix; the counts are those of the authors' program.
    """
    return tree_from_ranks(_published_ranks())


def recycling_tree() -> Topology:
    """Returns Token Recycling's tree with 80 nodes, the root among them.

    Differs from `published_recycling_tree`: a node that is hardly ever kept is left out, so that a forward has ten
    tiles of eight entries, and the nodes stand likeliest first, so that the least likely ones make room for others.
    """
    return tree_in_order(_likeliest_first([ranks for ranks in _published_ranks() if ranks != SELDOM_KEPT]))


def _published_ranks() -> list[tuple[int, ...]]:
    parents = (node.split(":") for node in RECYCLING_CHILDREN.split())
    return [(*map(int, ranks), child) for ranks, children in parents for child in range(int(children))]


def _likeliest_first(paths: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns a tree's paths in the order of their probability before anything was seen, parents before children."""
    rates = prior_rates(max(map(len, paths), default=0), 1 + max(map(max, paths), default=0))
    kept = {path: math.prod(float(rates[depth, rank]) for depth, rank in enumerate(path)) for path in paths}
    return sorted(paths, key=lambda path: (-kept[path], len(path), path))


TEMPLATES = {"recycling-80": recycling_tree}


def named_tree(name: str) -> Topology:
    """Returns the tree that a name stands for.

    Args:
      name: `off` for the root alone, `chain-N`, `tree-N` for the N drafted nodes that are likeliest to be kept before
        anything was seen, a template's name, or a JSON file with the ranks that lead to each node
        (`[[0], [1], [0, 0]]`) or the parents (`{"parents": [-1, 0, 0, 1]}`, ranks optional). Nodes stand likeliest
        first, those of a file with parents as the file has them.

    Raises:
      ValueError: there is no such tree, or the file holds none.
      OSError: the file cannot be read.
    """
    if name == "off":
        return topology([0])
    if match := re.fullmatch(r"chain-(\d+)", name):
        return chain(int(match[1]))
    if (nodes := sized(name)) is not None:
        return best_tree(prior_rates(LEVELS, RANKS), nodes)
    if name in TEMPLATES:
        return TEMPLATES[name]()
    if name.endswith(".json"):
        return _read(Path(name))
    names = ", ".join(("auto", "off", "chain-N", "chain-N:least=P", "tree-N", "confident-N", *TEMPLATES))
    raise ValueError(f"tree must be {names} or a .json file; got {name!r}")


def sized(name: str) -> int | None:
    """Returns the drafted nodes of a tree that its name gives no shape but a size, `tree-N`; None for other names."""
    match = re.fullmatch(r"tree-([1-9]\d*)", name)
    return int(match[1]) if match else None


def _read(path: Path) -> Topology:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return topology(content["parents"], content.get("ranks"))
        tree_from_ranks(content)  # Refuses what is no tree.
        return tree_in_order(_likeliest_first([tuple(map(int, path)) for path in content]))
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f'{path} must hold lists of ranks, or {{"parents": […]}}: {error!r}') from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
