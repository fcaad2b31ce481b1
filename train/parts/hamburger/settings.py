"""The settings of a run that grafts modules on a base."""

from __future__ import annotations

import dataclasses
import math

import optax

from jax_smash.smash.config import SmashConfig
from train.data.slot_pieces import Room
from train.run.settings import Settings, check_unused

BASES = ("trained", "frozen", "lora")
"""What becomes of the base: its weights learn too, stay as they are, or learn low-rank changes."""

STOP_TARGETS = ("groups", "own")
"""What the stop head learns: where the groups of the data end, or also where the micro-step decoder would go wrong."""


@dataclasses.dataclass(frozen=True)
class SmashSettings(Settings):
    """What decides the weights that a run on given segmented rows ends with; `length` counts a row's slots.

    The learning rate of `optimiser` is that of the modules.

    Attributes:
      tapped_layers, micro_layers, micro_steps, embedder, embedder_heads: as in `SmashConfig.for_base`.
      tokenizer_sha256: of the base's `tokenizer.json`.
      modules_sha256: of the weights of the modules that the run began with; empty for random ones.
      base: one of `BASES`.
      base_rate: the learning rate of the base, or of its changes, as a share of the modules'.
      rank, alpha: of low-rank changes; they are scaled by alpha / rank.
      stop_weight: what the stop head's loss counts.
      stop_target: one of `STOP_TARGETS`; by `own` a group also ends before a token that is not the micro-step
        decoder's most probable one, so that 1 − p_stop is the probability that it goes on rightly.
      kl_weight: what it counts how far predictions lie from the teacher's.
      teacher_sha256: of the teacher's weights; empty where it is the base that the run began with.
      cut_share: of the tokens that share a slot with the one before them, how many begin a group after all, drawn anew
        each time that they are read: a careful stop head and a batch whose rows wait for each other make groups shorter
        than the segmentation does.
      unfused_share: of documents, how many are read token by token up to some place, both drawn anew each time: groups
        are said behind prompts without any, and what the base knows of these is trained as well.
      beyond_weight: what the token that follows a group of a reply counts as the micro-step decoder's next, where a
        token of the group counts 1. Else it learns only what the segmentation lets share a slot, and is sure of what
        lies beyond, where a group should end.
      further_share: groups of several tokens that a row has room for, as a share of its slots. The micro-step decoder
        works on as many entries, used or not; where groups of one token are common, less than 1 is faster.
    """

    tapped_layers: tuple[int, ...] | None = None
    micro_layers: int = 4
    micro_steps: int = 4
    embedder: str = "attention"
    embedder_heads: int | None = None
    tokenizer_sha256: str = ""
    modules_sha256: str = ""
    base: str = "trained"
    base_rate: float = 0.5
    rank: int = 8
    alpha: float = 16.0
    stop_weight: float = 0.5
    stop_target: str = "groups"
    kl_weight: float = 0.0
    teacher_sha256: str = ""
    cut_share: float = 0.0
    unfused_share: float = 0.0
    beyond_weight: float = 0.0
    further_share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tapped_layers is not None:
            object.__setattr__(self, "tapped_layers", tuple(self.tapped_layers))
        if self.base not in BASES:
            raise ValueError(f"base must be one of {', '.join(BASES)}; got {self.base!r}")
        if self.stop_target not in STOP_TARGETS:
            raise ValueError(f"stop_target must be one of {', '.join(STOP_TARGETS)}; got {self.stop_target!r}")
        check_unused(self, "modules", "circle_weight", "own_every")
        if self.rank < 1 or self.alpha <= 0 or self.base_rate <= 0:
            raise ValueError(
                f"rank must be at least 1, alpha and base_rate above 0; got {self.rank}, {self.alpha}, {self.base_rate}"
            )
        for name in ("stop_weight", "kl_weight", "beyond_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)}")
        if not 0 < self.further_share <= 1:
            raise ValueError(f"further_share must be above 0 and at most 1; got {self.further_share}")
        if self.teacher_sha256 and not self.kl_weight:
            raise ValueError(f"a teacher needs a kl_weight above 0; got {self.kl_weight}")
        for name in ("cut_share", "unfused_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1; got {getattr(self, name)}")
        if self.model.max_positions < 2 * self.micro_steps:
            raise ValueError(f"micro_steps must be at most half the base's {self.model.max_positions} positions")
        _ = self.smash, self.room  # Refuses what does not fit the base.

    @property
    def smash(self) -> SmashConfig:
        """The modules' sizes."""
        return SmashConfig.for_base(
            self.model,
            tapped_layers=self.tapped_layers,
            micro_layers=self.micro_layers,
            micro_steps=self.micro_steps,
            embedder=self.embedder,
            embedder_heads=self.embedder_heads,
            tokenizer_sha256=self.tokenizer_sha256,
        )

    @property
    def room(self) -> Room:
        """What a row has room for."""
        further = math.ceil(self.further_share * self.length)
        # One document's part fits in any case: its first group is none of those that are predicted.
        read = min(self.micro_steps * self.length, self.length + (self.micro_steps - 1) * (further + 1))
        return Room(self.length, further, self.model.max_positions, read if self.kl_weight else None)

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher's weights are read beside the base's: weights that do not learn are their own teacher."""
        return bool(self.teacher_sha256) or (bool(self.kl_weight) and self.base == "trained")

    @property
    def frozen_roles(self) -> tuple[str, ...]:
        """Roles of the weights that are not trained."""
        return ("base",) * (self.base != "trained") + ("teacher",) * self.has_teacher

    def measured(self) -> SmashSettings:
        """Returns the settings under which exported weights are measured: in float32, by the groups' tokens alone."""
        alone = {"kl_weight": 0.0, "teacher_sha256": "", "beyond_weight": 0.0}
        return dataclasses.replace(self, base="trained", dtype="float32", **alone)

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optimiser of `train.parts.hamburger.start.first_smash_params`.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        shares = {"smasher": 1.0}
        shares |= {"base": self.base_rate} if self.base == "trained" else {}
        shares |= {"lora": self.base_rate} if self.base == "lora" else {}
        return self.optimiser.build_groups(self.steps, shares)
