"""The settings of a run that trains a drafter."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints.fit import dotted
from jax_smash.config import AttentionKind, ModelConfig
from jax_smash.models.chimera_config import FULL, TEXT_LAYER, ChimeraConfig
from jax_smash.models.config_fields import check_head_size
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.models.eagle1 import Eagle1Config
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.layers import Layer, OneKey
from jax_smash.smash.config import SmashConfig
from train.run.settings import Settings, check_unused
from train.tokenizer import END


@dataclasses.dataclass(frozen=True)
class DrafterSettings(Settings):
    """What decides the weights that a run on given packed rows ends with; `model` is the target's shape.

    Attributes:
      reply_begins: text before each reply of a chat. Of chats only replies are learned, of other texts everything.
      reply_ends: text that a reply ends with; it is part of it.
      choice_share: of the documents that are held out, how many choose the step that is exported. What is reported of
        it is measured on the others. With 0 the last step is exported, and all of them are reported on.
      states: how the target's states were kept on disk, as `StatesRecord.described` tells; empty where the target reads
        the rows itself.
      head_size: tokens that the drafter can say, the commonest of what is learned; 0 for all of the vocabulary.
    """

    reply_begins: str = "<|assistant|>"
    reply_ends: str = END
    choice_share: float = 0.5
    states: str = ""
    head_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unused(self, "a drafter", "answer_weight", "circle_weight", "own_every")
        if self.remat and not self.rematerialises:
            raise ValueError("remat says nothing of a drafter whose target is frozen; got true")
        if self.scan and self.states:
            raise ValueError("scan says nothing of a drafter whose target's states are kept on disk; got true")
        check_head_size(self.head_size, self.model.vocab_size)
        if not 0 <= self.choice_share < 1:
            raise ValueError(f"choice_share must be from 0 to below 1; got {self.choice_share}")
        if not self.reply_ends and self.reply_begins:
            raise ValueError(f"reply_ends must be a text beside reply_begins {self.reply_begins!r}; got none")

    @property
    def rematerialises(self) -> bool:
        """Whether `remat` saves memory."""
        return False

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
      mlp_width: F of the drafter's layer; 0 for the target's.
      max_positions: as of `EagleConfig`; 0 for the target's.
      tap_norms, feeds_normed, residual_normed: as of `EagleConfig`.
      own_head: `own_rows` of `EagleConfig`.
      test_steps: tokens that each entry drafts in training, each from what the drafter made of the one before it.
      step_decay: what a step counts beside the one before it.
    """

    taps: tuple[int, ...] | None = None
    mlp_width: int = 0
    max_positions: int = 0
    tap_norms: bool = False
    feeds_normed: bool = False
    residual_normed: bool = False
    own_head: bool = True
    test_steps: int = 7
    step_decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taps is not None:
            object.__setattr__(self, "taps", tuple(self.taps))
        if not 1 <= self.test_steps < self.length:
            raise ValueError(f"test_steps must be from 1 to less than the row's {self.length}; got {self.test_steps}")
        check_decay("step_decay", self.step_decay)
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
            max_positions=self.max_positions or self.model.max_positions,
            tap_norms=self.tap_norms,
            feeds_normed=self.feeds_normed,
            residual_normed=self.residual_normed,
            own_rows=self.own_head,
            **changes,
        )


LABELS = ("target", "text")
"""What is learned to be said: what the target predicts, or the text's own next token."""


@dataclasses.dataclass(frozen=True)
class Eagle1Settings(DrafterSettings):
    """What decides the weights of an EAGLE-1 drafter.

    Attributes:
      mlp_width: F of the drafter's layer; 0 for the target's.
      max_positions: as of `Eagle1Config`; 0 for the target's.
      join_bias: as of `Eagle1Config`. vLLM loads drafters without it alone, and SGLang those with it.
      feature_share: what the distance of guessed features from the target's counts.
      prediction_share: what the cross-entropy against the target's predictions counts.
      noise: features are moved by up to half of this, times 512 over the tokens of their document; 0 for none.
      test_steps: tokens that each entry drafts in training, each from what the drafter made of the one before it. The
        paper has 1; with more, the drafter also learns from features of its own.
      step_decay: what a step counts beside the one before it.
    """

    mlp_width: int = 0
    max_positions: int = 0
    join_bias: bool = True
    feature_share: float = 1.0
    prediction_share: float = 0.1
    noise: float = 0.2
    test_steps: int = 1
    step_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("feature_share", "prediction_share", "noise"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite; got {getattr(self, name)}")
        if not self.feature_share + self.prediction_share:
            raise ValueError("feature_share or prediction_share must be above 0: nothing would be learned")
        if not 1 <= self.test_steps < self.length:
            raise ValueError(f"test_steps must be from 1 to less than the row's {self.length}; got {self.test_steps}")
        check_decay("step_decay", self.step_decay)
        _ = self.eagle1  # Refuses what does not fit the target.

    def measured(self) -> Eagle1Settings:
        """Returns the settings under which exported weights are measured: in float32, by the cross-entropy alone."""
        return dataclasses.replace(self, dtype="float32", feature_share=0.0, prediction_share=1.0, noise=0.0)

    @property
    def eagle1(self) -> Eagle1Config:
        """The drafter's sizes."""
        return Eagle1Config.for_target(
            self.model,
            mlp_width=self.mlp_width or self.model.mlp_width,
            max_positions=self.max_positions or self.model.max_positions,
            join_bias=self.join_bias,
            head_size=self.head_size,
        )


COMPUTES = ("activation", "norm_offset", "query_scale", "residual_scale", "attention_softcap")
"""Of a model: what a layer computes, beside its weights."""


@dataclasses.dataclass(frozen=True)
class ChimeraSettings(DrafterSettings):
    """What decides the weights of a Chimera drafter.

    Attributes:
      gram, gram_encoder, decoding_heads, residual_heads: as of `ChimeraConfig`. An encoder that is a layer has the
        sizes of the target's first, and begins as that.
      encoder_frozen: the encoder stays as it begins.
      mlp_width: F of the drafter's layer; 0 for the target's.
      max_positions: as of `ChimeraConfig`; 0 for the target's.
      head_decay: what a head counts beside the one before it.
      distillation: what the squared distance of the layer's states from the target's counts beside the cross-entropy.
      labels: `target` for what the target predicts, `text` for the text's own next tokens.
    """

    gram: int = 3
    gram_encoder: str = "mlp"
    encoder_frozen: bool = False
    decoding_heads: int = 4
    residual_heads: bool = True
    mlp_width: int = 0
    max_positions: int = 0
    head_decay: float = 1.0
    distillation: float = 1.0
    labels: str = "target"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("head_decay", self.head_decay)
        if not 0 <= self.distillation < float("inf"):
            raise ValueError(f"distillation must be at least 0 and finite; got {self.distillation}")
        if self.labels not in LABELS:
            raise ValueError(f"labels must be one of {', '.join(LABELS)}; got {self.labels!r}")
        if self.encoder_frozen and self.gram_encoder != TEXT_LAYER:
            raise ValueError(
                f"encoder_frozen goes with gram_encoder {TEXT_LAYER}, which begins as the target's first layer; "
                f"got {self.gram_encoder}, which begins at random"
            )
        if self.gram_encoder == TEXT_LAYER:
            self._check_first_layer()
        if self.encoder_frozen and self.optimiser.weight_decay:
            raise ValueError(f"encoder_frozen needs a weight_decay of 0; got {self.optimiser.weight_decay}")
        if self.chimera.decoding_heads >= self.length:
            raise ValueError(f"decoding_heads must be less than the row's {self.length}; got {self.decoding_heads}")

    def _check_first_layer(self) -> None:
        """Refuses a target whose first layer, of the same weights, makes something else than the encoder would."""
        own = self.chimera.encoder_layer
        for name in COMPUTES:
            if (has := getattr(self.model, name)) != (needs := getattr(own, name)):
                raise ValueError(
                    f"gram_encoder {TEXT_LAYER} needs a target whose {name} is {needs}, as the encoder's; got {has}"
                )
        has, needs = _shapes_of(self.model, self.model.layer_kinds[0]), _shapes_of(own, FULL)
        if other := sorted({*has.items()} ^ {*needs.items()}):
            name = other[0][0]
            raise ValueError(
                f"gram_encoder {TEXT_LAYER} needs a target whose first layer has the encoder's weights; of {name} it "
                f"has {list(has.get(name, ())) or 'none'}, and the encoder {list(needs.get(name, ())) or 'none'}"
            )
        if 0 in self.model.unrotated_layers:
            raise ValueError(f"gram_encoder {TEXT_LAYER} needs a target whose first layer has a rotary embedding")
        slides = self.model.layer_kinds[0] != FULL
        if slides and (self.model.window < self.length or self.model.rope_sliding != self.model.rope):
            raise ValueError(
                f"gram_encoder {TEXT_LAYER} needs a target whose first layer sees all {self.length} tokens of a row, "
                f"and has the rotary embedding of those that do; this one's is a sliding layer of {self.model.window}"
            )

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
            encoder_mlp_width=self.model.mlp_width if self.gram_encoder == TEXT_LAYER else 0,
            decoding_heads=self.decoding_heads,
            residual_heads=self.residual_heads,
            head_size=self.head_size,
        )


@dataclasses.dataclass(frozen=True)
class DFlashSettings(DrafterSettings):
    """What decides the weights of a DFlash drafter.

    Attributes:
      taps: as of `DFlashConfig`; None for as many as there are layers, evenly spread.
      num_layers, block_size, mask_token, window: as of `DFlashConfig`.
      mlp_width: F of the drafter's layers; 0 for the target's.
      max_positions: as of `DFlashConfig`; 0 for the target's.
      anchors: blocks of a row at most, each behind a random token.
      decay_places: places of a block over which what a place counts falls to 1/e.
      labels: `target` for what the target predicts, `text` for the text's own next tokens.
    """

    taps: tuple[int, ...] | None = None
    num_layers: int = 5
    block_size: int = 16
    mask_token: int | None = None
    window: int = 0
    mlp_width: int = 0
    max_positions: int = 0
    anchors: int = 512
    decay_places: float = 7.0
    labels: str = "target"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taps is not None:
            object.__setattr__(self, "taps", tuple(self.taps))
        if self.anchors < 1:
            raise ValueError(f"anchors must be at least 1; got {self.anchors}")
        if not 0 < self.decay_places < float("inf"):
            raise ValueError(f"decay_places must be above 0 and finite; got {self.decay_places}")
        if self.labels not in LABELS:
            raise ValueError(f"labels must be one of {', '.join(LABELS)}; got {self.labels!r}")
        if self.dflash.block_size > self.length:
            raise ValueError(f"block_size must be at most the row's {self.length}; got {self.block_size}")

    @property
    def read_taps(self) -> tuple[int, ...]:
        """Those of the drafter."""
        return tuple(sorted({*self.dflash.taps}))

    @property
    def dflash(self) -> DFlashConfig:
        """The drafter's sizes."""
        changes = {"taps": self.taps} if self.taps is not None else {}
        return DFlashConfig.for_target(
            self.model,
            num_layers=self.num_layers,
            block_size=self.block_size,
            mask_token=self.mask_token,
            window=self.window,
            mlp_width=self.mlp_width or self.model.mlp_width,
            max_positions=self.max_positions or self.model.max_positions,
            head_size=self.head_size,
            **changes,
        )


@dataclasses.dataclass(frozen=True)
class MicroSettings(DrafterSettings):
    """What decides the weights of HAMburger's micro-step decoder beside a base that reads tokens one by one.

    Attributes:
      tapped_layers, micro_layers, micro_steps: as of `SmashConfig`; a draft has micro_steps − 1 tokens at most.
      step_decay: what a token of a draft counts beside the one before it.
      stop_weight: what the stop head's loss counts.
    """

    tapped_layers: tuple[int, ...] | None = None
    micro_layers: int = 1
    micro_steps: int = 5
    step_decay: float = 1.0
    stop_weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tapped_layers is not None:
            object.__setattr__(self, "tapped_layers", tuple(self.tapped_layers))
        if not 2 <= self.micro_steps <= self.length:
            raise ValueError(f"micro_steps must be from 2 to the row's {self.length}; got {self.micro_steps}")
        check_decay("step_decay", self.step_decay)
        if not 0 <= self.stop_weight < float("inf"):
            raise ValueError(f"stop_weight must be at least 0 and finite; got {self.stop_weight}")
        _ = self.smash  # Refuses what does not fit the base.

    @property
    def rematerialises(self) -> bool:
        """Whether `remat` saves memory: the decoder's layers run again for its gradient."""
        return True

    def measured(self) -> MicroSettings:
        """Returns the settings under which exported weights are measured: in float32, by the cross-entropy alone."""
        return dataclasses.replace(self, dtype="float32", stop_weight=0.0)

    @property
    def read_taps(self) -> tuple[int, ...]:
        """Those that hold the outputs of the tapped layers."""
        return tuple(tap for tap in self.smash.tap_numbers(self.model.num_layers) if tap is not None)

    @property
    def smash(self) -> SmashConfig:
        """The modules' sizes. No group shares a slot, so the embedder is the one without weights."""
        return SmashConfig.for_base(
            self.model,
            tapped_layers=self.tapped_layers,
            micro_layers=self.micro_layers,
            micro_steps=self.micro_steps,
            embedder="mean",
        )


def _shapes_of(model: ModelConfig, kind: AttentionKind) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a layer's weights, by their dotted names."""
    layer = nnx.eval_shape(lambda: Layer(model, kind, rngs=OneKey(), dtype=jnp.float32))
    return {dotted(path): tuple(weight.shape) for path, weight in nnx.to_flat_state(nnx.state(layer))}


def check_decay(name: str, value: float) -> None:
    """Refuses a decay that is not above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1; got {value}")
