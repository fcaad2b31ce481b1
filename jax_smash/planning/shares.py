"""What one device holds of a model, its drafter and its rows, read off the programs' arguments as shapes."""

import dataclasses

from jax_smash.config import ModelConfig
from jax_smash.planning.abstract import Abstract, share, share_bytes
from jax_smash.planning.drafting import Drafter, drafter_of
from jax_smash.planning.weights import Weights, target_weights


@dataclasses.dataclass(frozen=True)
class Shares:
    """What one device holds; rows are those of a device, of the mesh's data and fsdp.

    Attributes:
      target: the target's weights by what they are for.
      drafter: what drafts.
      kv_heads: of the cache.
      layer_slots: slots of each layer's cache.
      layer_slot_bytes: bytes of a slot of each layer's cache, keys and values, of a row.
      cache, scorer, memory, output: bytes of a row: the target's cache, what a policy keeps to choose slots, what the
        drafter keeps, and everything else.
      shared: bytes of what rows share.
      nodes: of the tree that a step checks, the root included.
      block: entries a row that a step writes at most.
      learns_prompt: the drafter reads logits of the prompt.
    """

    target: dict[str, Weights]
    drafter: Drafter
    kv_heads: int
    layer_slots: tuple[int, ...]
    layer_slot_bytes: tuple[int, ...]
    cache: int
    scorer: int
    memory: int
    output: int
    shared: int
    nodes: int
    block: int
    learns_prompt: bool

    @property
    def weights(self) -> Weights:
        """The target's, in all."""
        return sum(self.target.values(), Weights())

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.cache + self.scorer + self.memory + self.output

    def arguments(self, rows: int) -> int:
        """Returns the bytes that a device holds when a step begins.

        Args:
          rows: of this device.
        """
        return self.weights.bytes + self.drafter.held + self.shared + rows * self.row


def shares_of(arguments: Abstract, config: ModelConfig) -> Shares:
    """Returns what a device holds by the shapes of a program's arguments.

    Args:
      arguments: of programs in which every device has one row.
      config: the target's sizes.
    """
    rows, cache = arguments.state.rows, arguments.cache
    layers = list(zip(cache.keys, cache.values, strict=True))
    memory = {role: held for role, held in rows.memory.items() if role != "target"}
    held = share_bytes(rows.memory["target"])
    scorer = share_bytes(arguments.chosen_by)
    drafter = getattr(arguments.strategy, "drafter", None)
    return Shares(
        target=target_weights(arguments.params["target"]),
        drafter=drafter_of(arguments, config),
        kv_heads=share(cache.keys[0])[1],
        layer_slots=tuple(keys.shape[2] for keys in cache.keys),
        layer_slot_bytes=tuple(share_bytes(layer) // layer[0].shape[2] for layer in layers),
        cache=held - scorer,
        scorer=scorer,
        memory=share_bytes(memory),
        output=share_bytes(rows) - held - share_bytes(memory),
        shared=share_bytes(arguments.state.shared),
        nodes=arguments.nodes,
        block=arguments.strategy.block,
        learns_prompt=bool(getattr(getattr(drafter, "tree", drafter), "learn_prompt", False)),
    )
