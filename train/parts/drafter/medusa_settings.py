"""What decides the weights of Medusa's heads."""

from __future__ import annotations

import dataclasses

import optax

from jax_smash.models.medusa import MedusaConfig
from train.parts.drafter.settings import LABELS, DrafterSettings, check_decay
from train.parts.lora import HEAD, MATRICES

BASES = ("frozen", "lora")
"""What becomes of the target beside Medusa's heads: it stays as it is, or learns low-rank changes."""

OF_CHANGES = (
    "rank",
    "alpha",
    "targets",
    "heads_alone",
    "base_rate",
    "base_weight",
    "heads_weight",
    "heads_ramp",
    "base_labels",
)
"""Fields that say something only of a target that learns."""


@dataclasses.dataclass(frozen=True)
class MedusaSettings(DrafterSettings):
    """What decides the weights of Medusa's heads, and of the target where it is trained with them (Medusa-2).

    The learning rate of `optimiser` is that of the heads. Fields from `rank` on are of a target that learns.

    Attributes:
      num_heads, blocks: as of `MedusaConfig`.
      own_head: `own_rows` of `MedusaConfig`.
      head_decay: what a head counts beside the one before it.
      base: one of `BASES`.
      rank, alpha: of low-rank changes; they are scaled by alpha / rank.
      targets: the matrices that change: of layers `w_qkv`, `w_o`, `w_gate_up` and `w_down`, and `head`, the rows of
        tokens, where these are not the embedding.
      heads_alone: steps at first in which the heads learn alone. Then the changes' learning rate warms up as the heads'
        did, and ends with it. Published recipes have two runs in place of it, with a schedule of the heads in each.
      base_rate: the changes' learning rate as a share of the heads'.
      base_weight: what the target's own next token counts.
      heads_weight: what the first head counts.
      heads_ramp: steps in which that rises from 0, by a sine; 0 for none.
      base_labels: one of `LABELS`: the text's next token, or what the target predicted before it changed.
    """

    num_heads: int = 4
    blocks: int = 1
    own_head: bool = True
    head_decay: float = 0.8
    base: str = "frozen"
    rank: int = 32
    alpha: float = 16.0
    targets: tuple[str, ...] = MATRICES
    heads_alone: int = 0
    base_rate: float = 0.25
    base_weight: float = 1.0
    heads_weight: float = 0.2
    heads_ramp: int = 0
    base_labels: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.base not in BASES:
            raise ValueError(f"base must be one of {', '.join(BASES)}; got {self.base!r}")
        if self.base_labels not in LABELS:
            raise ValueError(f"base_labels must be one of {', '.join(LABELS)}; got {self.base_labels!r}")
        self._check_changes()
        check_decay("head_decay", self.head_decay)
        if self.medusa.num_heads >= self.length:
            raise ValueError(f"num_heads must be less than the row's {self.length}; got {self.num_heads}")

    def _check_changes(self) -> None:
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in OF_CHANGES if getattr(self, name) != usual[name]]
        if self.base == "frozen" and given:
            raise ValueError(f"{given[0]} is of base 'lora', a target that learns; got {getattr(self, given[0])!r}")
        if self.rank < 1 or not self.targets:
            raise ValueError(f"rank must be at least 1, targets not empty; got {self.rank} and {self.targets}")
        for name in ("alpha", "base_rate", "heads_weight"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite; got {getattr(self, name)}")
        for name in ("base_weight", "heads_ramp"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite; got {getattr(self, name)}")
        if self.base == "lora" and not 0 <= self.heads_alone < self.steps - self.optimiser.warmup:
            raise ValueError(
                f"heads_alone must be from 0 to less than the {self.steps} steps without {self.optimiser.warmup} of "
                f"warm-up; got {self.heads_alone}"
            )
        known = (*MATRICES, *(() if self.model.tied_head else (HEAD,)))
        if unknown := [name for name in self.targets if name not in known]:
            raise ValueError(f"targets must be among {', '.join(known)}; got {unknown[0]!r}")
        if self.base == "lora" and self.states:
            raise ValueError("states can be kept of a target that stays as it is alone; base is 'lora'")

    @property
    def rematerialises(self) -> bool:
        """Whether `remat` saves memory: a target that learns keeps its layers' activations."""
        return self.base == "lora"

    def measured(self) -> MedusaSettings:
        """Returns the settings under which exported weights are measured: in float32, against the text."""
        return dataclasses.replace(self, dtype="float32", base_labels="text")

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optimiser of the heads, and of the target's changes where it learns, each with its own norm.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        heads = self.optimiser.build(self.steps)
        if self.base == "frozen":
            return heads
        slower = dataclasses.replace(self.optimiser, learning_rate=self.optimiser.learning_rate * self.base_rate)
        changes = optax.transforms.conditionally_mask(
            slower.build(self.steps - self.heads_alone), lambda step: step >= self.heads_alone
        )
        return optax.partition({"drafter": heads, "lora": changes}, {"drafter": "drafter", "lora": "lora"})

    @property
    def medusa(self) -> MedusaConfig:
        """The heads' sizes."""
        return MedusaConfig(
            self.model.vocab_size,
            self.model.d_model,
            num_heads=self.num_heads,
            blocks=self.blocks,
            own_rows=self.own_head,
            head_size=self.head_size,
        )
