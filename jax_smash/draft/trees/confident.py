"""Trees that grow by a drafter's confidence, by name: `confident-N`, with sizes as settings, and `chain-N:least=P`."""

import dataclasses
import re

from jax_smash.draft.trees.tree import Topology, topology

PREFIX = "confident-"

PROBABILITY = r"0?\.\d+|0"


@dataclasses.dataclass(frozen=True)
class Confident:
    """The sizes of a tree whose shape is another at each step: the nodes that the drafter finds likeliest.

    Level by level the `width` likeliest nodes get `width` children each; of all nodes that were seen, the likeliest
    stay. A node's probability is the product of what the drafter gave to the tokens on its path.

    Source: Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", section 4; the
    defaults are those of section 5.
    Differs: the drafter's own greedy chain, as deep as the tree may be, stays in the tree, so that the tree never
    accepts less than the chain would. Without `chain` it is the paper's. With `least` drafting stops where it is too
    unsure, as Zhang et al. 2023, "Draft & Verify", section 3.3, and Mamou et al. 2024, "Dynamic Speculation Lookahead",
    have it of chains; theirs compares a token's own probability, or a classifier's, in place of the path's product.

    Attributes:
      nodes: drafted nodes that stay; the paper has 60 for 7B models, 50 for 13B and 48 for 70B.
      depth: levels at most.
      width: nodes of a level that get children, and the children of each.
      chain: the greedy chain stays.
      least: nodes of a lower probability are not drafted, those of the greedy chain included; nor is anything where no
        token after the root has three times as much.
    """

    nodes: int
    depth: int = 6
    width: int = 10
    chain: bool = True
    least: float = 0.0

    def __post_init__(self) -> None:
        for name in ("nodes", "depth", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.least <= 1 / 3:
            raise ValueError(f"least must be from 0 to 1/3; got {self.least}")
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
    def branches(self) -> bool:
        """Whether a tree may branch.

        It may even where `topology` is a chain, because the drafter's own chain may end early.
        """
        return self.width > 1

    @property
    def topology(self) -> Topology:
        """A fixed tree with as many nodes and levels, for what only asks for these: a chain, and children of its root.

        Its ranks are no tree's: a node may have more children than the settings allow.
        """
        return topology([0, *range(self.levels), *[0] * (self.nodes - self.levels)])


def confident(name: str) -> Confident | None:
    """Returns the sizes that a name gives, as in `confident-60` or `confident-60:depth=7,width=8`; None for others.

    A chain that stops is `chain-3:least=0.25`.

    Raises:
      ValueError: a setting is unknown or no number, or out of range.
    """
    if chain := re.fullmatch(r"chain-(\d+):(.*)", name):
        stopping = re.fullmatch(rf"least=({PROBABILITY})", chain[2])
        if stopping is None:
            raise ValueError(f"the setting of chain-N is least=P, as in chain-5:least=0.1; got {chain[2]!r}")
        length = int(chain[1])
        return Confident(length, depth=length, width=1, least=float(stopping[1]))
    if not name.startswith(PREFIX):
        return None
    nodes, _, settings = name.removeprefix(PREFIX).partition(":")
    if not re.fullmatch(r"\d+", nodes):
        raise ValueError(f"tree {PREFIX}N must have a number of nodes, as in {PREFIX}60; got {name!r}")
    given: dict[str, float] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key == "chain" and value in ("true", "false"):
            given[key] = value == "true"
        elif key in ("depth", "width") and re.fullmatch(r"\d+", value):
            given[key] = int(value)
        elif key == "least" and re.fullmatch(PROBABILITY, value):
            given[key] = float(value)
        else:
            raise ValueError(
                f"settings of {PREFIX}N are depth=N, width=N, chain=true or false and least=P; got {setting!r}"
            )
    return Confident(int(nodes), **given)  # type: ignore[arg-type]
