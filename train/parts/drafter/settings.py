"""The settings of a run that trains a drafter."""

from __future__ import annotations

import dataclasses

import optax

from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.medusa import MedusaConfig
from train.parts.lora import HEAD, MATRICES
from train.run.settings import Settings
from train.tokenizer import END


@dataclasses.dataclass(frozen=True)
class DrafterSettings(Settings):
    """What decides the weights that a run on given packed rows ends with; `model` is the target's shape.

    Attributes:
      reply_begins: text before each reply of a chat. Of chats only replies are learned, of other texts everything.
      reply_ends: text that a reply ends with; it is part of it.
      choice_share: of the documents that are held out, how many choose the step that is exported. What is reported of
        it is measured on the others. With 0 the last step is exported, and all of them are reported on.
      states: dtype of the target's states where they were kept on disk; empty where the target reads the rows itself.
    """

    reply_begins: str = "<|assistant|>"
    reply_ends: str = END
    choice_share: float = 0.5
    states: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recall or self.own_rows:
            raise ValueError("recall and own_rows are settings of train.base alone")
        if not 0 <= self.choice_share < 1:
            raise ValueError(f"choice_share must be from 0 to below 1; got {self.choice_share}")
        if not self.reply_ends and self.reply_begins:
            raise ValueError(f"reply_ends must be a text beside reply_begins {self.reply_begins!r}; got none")

    @property
    def read_taps(self) -> tuple[int, ...]:
        """Taps of the target that the drafter reads beside its hidden states, in rising order; see `states`."""
        return ()

    def measured(self) -> DrafterSettings:
        """Returns the settings under which exported weights are measured: in float32."""
        return dataclasses.replace(self, dtype="float32")


@dataclasses.dataclass(frozen=True)
class EagleSettings(DrafterSettings):
    """What decides the weights of an EAGLE-3 drafter.

    Attributes:
      taps: as of `EagleConfig`; None for those that enter layers 2, L/2 and L − 3.
      head_size: tokens that the drafter can say, the commonest of what is learned; 0 for all of the vocabulary.
      mlp_width: F of the drafter's layer; 0 for the target's.
      tap_norms, feeds_normed, residual_normed: as of `EagleConfig`.
      test_steps: tokens that each entry drafts in training, each from what the drafter made of the one before it.
      step_decay: what a step counts beside the one before it.
    """

    taps: tuple[int, ...] | None = None
    head_size: int = 0
    mlp_width: int = 0
    tap_norms: bool = False
    feeds_normed: bool = False
    residual_normed: bool = False
    test_steps: int = 7
    step_decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taps is not None:
            object.__setattr__(self, "taps", tuple(self.taps))
        if not 1 <= self.test_steps < self.length:
            raise ValueError(f"test_steps must be from 1 to less than the row's {self.length}; got {self.test_steps}")
        if not 0 < self.step_decay <= 1:
            raise ValueError(f"step_decay must be above 0 and at most 1; got {self.step_decay}")
        _ = self.eagle  # Refuses what does not fit the target.

    @property
    def read_taps(self) -> tuple[int, ...]:
        """Those of the drafter."""
        return tuple(sorted({*self.eagle.taps}))

    @property
    def eagle(self) -> EagleConfig:
        """The drafter's sizes."""
        changes = {"taps": self.taps} if self.taps is not None else {}
        return EagleConfig.for_target(
            self.model,
            head_size=self.head_size or self.model.vocab_size,
            mlp_width=self.mlp_width or self.model.mlp_width,
            tap_norms=self.tap_norms,
            feeds_normed=self.feeds_normed,
            residual_normed=self.residual_normed,
            **changes,
        )


BASES = ("frozen", "lora")
"""What becomes of the target beside Medusa's heads: it stays as it is, or learns low-rank changes."""

LABELS = ("target", "text")
"""What is learned to be said: what the target predicts, or the text's own next token."""


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
        did, and ends with it.
      base_rate: the changes' learning rate as a share of the heads'.
      base_weight: what the target's own next token counts.
      heads_weight: what the first head counts.
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
    base_labels: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.base not in BASES:
            raise ValueError(f"base must be one of {', '.join(BASES)}; got {self.base!r}")
        if self.base_labels not in LABELS:
            raise ValueError(f"base_labels must be one of {', '.join(LABELS)}; got {self.base_labels!r}")
        self._check_changes()
        if not 0 < self.head_decay <= 1:
            raise ValueError(f"head_decay must be above 0 and at most 1; got {self.head_decay}")
        if self.medusa.num_heads >= self.length:
            raise ValueError(f"num_heads must be less than the row's {self.length}; got {self.num_heads}")

    def _check_changes(self) -> None:
        if self.rank < 1 or not self.targets:
            raise ValueError(f"rank must be at least 1, targets not empty; got {self.rank} and {self.targets}")
        for name in ("alpha", "base_rate", "heads_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0; got {getattr(self, name)}")
        if self.base_weight < 0:
            raise ValueError(f"base_weight must be at least 0; got {self.base_weight}")
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
        )


@dataclasses.dataclass(frozen=True)
class ChimeraSettings(DrafterSettings):
    """What decides the weights of a Chimera drafter.

    Attributes:
      gram, gram_encoder, decoding_heads: as of `ChimeraConfig`.
      mlp_width: F of the drafter's layer; 0 for the target's.
      max_positions: as of `ChimeraConfig`; 0 for the target's.
      head_decay: what a head counts beside the one before it.
      distillation: what the squared distance of the layer's states from the target's counts beside the cross-entropy.
      labels: `target` for what the target predicts, `text` for the text's own next tokens.
    """

    gram: int = 3
    gram_encoder: str = "mlp"
    decoding_heads: int = 4
    mlp_width: int = 0
    max_positions: int = 0
    head_decay: float = 1.0
    distillation: float = 1.0
    labels: str = "target"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.head_decay <= 1:
            raise ValueError(f"head_decay must be above 0 and at most 1; got {self.head_decay}")
        if not 0 <= self.distillation < float("inf"):
            raise ValueError(f"distillation must be at least 0 and finite; got {self.distillation}")
        if self.labels not in LABELS:
            raise ValueError(f"labels must be one of {', '.join(LABELS)}; got {self.labels!r}")
        if self.chimera.decoding_heads >= self.length:
            raise ValueError(f"decoding_heads must be less than the row's {self.length}; got {self.decoding_heads}")

    def measured(self) -> ChimeraSettings:
        """Returns the settings under which exported weights are measured: in float32, by the cross-entropy alone."""
        return dataclasses.replace(self, dtype="float32", distillation=0.0)

    @property
    def chimera(self) -> ChimeraConfig:
        """The drafter's sizes."""
        return ChimeraConfig.for_target(
            self.model,
            mlp_width=self.mlp_width or self.model.mlp_width,
            max_positions=self.max_positions or self.model.max_positions,
            gram=self.gram,
            gram_encoder=self.gram_encoder,
            decoding_heads=self.decoding_heads,
        )
