"""Trees that grow by a drafter's confidence, by name: `confident-N`, with depth and width as settings."""

import dataclasses
import re

from jax_smash.draft.trees.tree import Topology, topology

PREFIX = "confident-"


@dataclasses.dataclass(frozen=True)
class Confident:
    """The sizes of a tree whose shape is another at each step: the nodes that the drafter finds likeliest.

    Level by level the `width` likeliest nodes get `width` children each; of all nodes that were seen, the likeliest
    stay. A node's probability is the product of what the drafter gave to the tokens on its path.

    Source: Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", section 4; the
    defaults are those of section 5.
    Differs: the drafter's own greedy chain, as deep as the tree may be, stays in the tree, so that the tree never
    accepts less than the chain would. Without `chain` it is the paper's.

    Attributes:
      nodes: drafted nodes that stay; the paper has 60 for 7B models, 50 for 13B and 48 for 70B.
      depth: levels at most.
      width: nodes of a level that get children, and the children of each.
      chain: the greedy chain stays.
    """

    nodes: int
    depth: int = 6
    width: int = 10
    chain: bool = True

    def __post_init__(self) -> None:
        for name in ("nodes", "depth", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        seen = self.width + (self.levels - 1) * self.width**2
        if self.nodes > seen:
            raise ValueError(
                f"a tree of depth {self.depth} and width {self.width} has at most {seen} nodes; got {self.nodes}"
            )

    @property
    def levels(self) -> int:
        """The depth of a node, at most."""
        return min(self.depth, self.nodes)

    @property
    def topology(self) -> Topology:
        """A fixed tree with as many nodes and levels, for what only asks for these: a chain, and children of its root.

        Its ranks are no tree's: a node may have more children than the settings allow.
        """
        return topology([0, *range(self.levels), *[0] * (self.nodes - self.levels)])


def confident(name: str) -> Confident | None:
    """Returns the sizes that a name gives, as in `confident-60` or `confident-60:depth=7,width=8`; None for others.

    Raises:
      ValueError: a setting is unknown or no number, or out of range.
    """
    if not name.startswith(PREFIX):
        return None
    nodes, _, settings = name.removeprefix(PREFIX).partition(":")
    if not re.fullmatch(r"\d+", nodes):
        raise ValueError(f"tree {PREFIX}N must have a number of nodes, as in {PREFIX}60; got {name!r}")
    given: dict[str, int | bool] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key == "chain" and value in ("true", "false"):
            given[key] = value == "true"
        elif key in ("depth", "width") and re.fullmatch(r"\d+", value):
            given[key] = int(value)
        else:
            raise ValueError(f"settings of {PREFIX}N are depth=N, width=N and chain=true or false; got {setting!r}")
    return Confident(int(nodes), **given)  # type: ignore[arg-type]
