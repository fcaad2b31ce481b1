"""How the drafts of a row fared, as it is told when the row has ended."""

import dataclasses

import numpy as np

from jax_smash.decode.speculative import DraftMemory
from jax_smash.decode.state import DecodeState


@dataclasses.dataclass(frozen=True)
class Drafted:
    """How the drafts of one row fared.

    Attributes:
      tree: as it was asked for, and `source`, what its choice rests on.
      nodes: drafted nodes of a step when its batch ended; 0 where the drafter was off.
      steps: by drafted nodes, the steps of all batches so far that drafted so many; empty for a tree that stays.
      tried: by depth, 1 first: steps in which a node of this depth hung below a kept one.
      kept: by depth: steps in which one was kept; it is emitted unless a stop or the limit came before.
    """

    tree: str
    source: str
    nodes: int
    steps: dict[int, int]
    tried: list[int]
    kept: list[int]

    @property
    def acceptance(self) -> list[float | None]:
        """Kept over tried, by depth; None where none was tried."""
        return [k / t if t else None for k, t in zip(self.kept, self.tried, strict=True)]


def drafted_rows(state: DecodeState, *, tree: str, source: str) -> list[Drafted] | None:
    """Returns how the drafts of each row fared; None in plain decoding.

    Args:
      state: of rows that have decoded.
      tree, source: as in `Drafted`.
    """
    memory, draft = state.shared.memory, state.rows.draft
    if not isinstance(memory, DraftMemory):
        return None
    sizes = [topology.nodes - 1 for topology in memory.ladder]
    steps = {} if memory.sizing is None else dict(zip(sizes, np.asarray(memory.sizing.used).tolist(), strict=True))
    nodes = sizes[int(memory.choice)]
    rows = zip(np.asarray(draft.tried).tolist(), np.asarray(draft.kept).tolist(), strict=True)
    return [Drafted(tree=tree, source=source, nodes=nodes, steps=steps, tried=tried, kept=kept) for tried, kept in rows]
