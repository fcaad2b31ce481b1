"""A model that is ready to decode."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_smash.automaton import token_bytes
from jax_smash.cache import Block
from jax_smash.checkpoints.smasher import (
    SmashModules,
)
from jax_smash.config import ModelConfig
from jax_smash.loading.kept import Kept
from jax_smash.protocols import ModelDef
from jax_smash.pytree import size


@dataclasses.dataclass(frozen=True)
class Model:
    """Everything that decoding needs, by role.

    Attributes:
      name: the name that it was loaded by.
      definition: the model without its parameters. Any `ModelDef` will do, not only those of this package.
      params: parameters by role; those of the model itself are under `target`.
      config: the sizes of the model; None for a model that is not of this package.
      tokenizer: a Hugging Face tokenizer; None where the directory has none.
      stop_tokens: ids that end a text.
      path: the directory or GGUF file it was loaded from; None for a model without one.
      modules: the HAMburger modules grafted on it; None where there are none. Their parameters are also in `params`,
        under `smasher`.
      fingerprint: of the checkpoint's weights; None for a model made in memory, and for weights rounded to float16
        unless modules asked for it.
      source: where its weights were read from: `path`, or the modules' own folder with the base that they were trained
        with.
      kept: what was made beside its weights and serves later calls, such as a drafter that was read from a folder.
    """

    name: str
    definition: ModelDef
    params: dict[str, Any]
    config: ModelConfig | None = None
    tokenizer: Any = None
    stop_tokens: tuple[int, ...] = ()
    path: Path | None = None
    modules: SmashModules | None = None
    fingerprint: str | None = None
    source: Path | None = None
    kept: Kept = dataclasses.field(default_factory=Kept, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """Says what it is and how large, and prints no weights."""
        family = self.config.family if self.config else type(self.definition).__name__
        parts = [repr(self.name), family, size(self.params["target"])]
        parts += ["no tokenizer"] * (self.tokenizer is None)
        parts += [f"with {role}, {size(weights)}" for role, weights in self.params.items() if role != "target"]
        return f"Model({'; '.join(parts)})"

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a plain prompt, with the special tokens that the tokenizer adds at the start.

        Raises:
          ValueError: the model has no tokenizer.
        """
        return list(self._tokenizer()(text)["input_ids"])

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Returns the tokens of a conversation up to the place where the assistant answers.

        Raises:
          ValueError: the tokenizer is missing or has no chat template, or the template refuses the messages.
        """
        tokenizer = self._tokenizer()
        if not tokenizer.chat_template:
            raise ValueError(f"{self.name} has no chat template; decode it without chat")
        from jinja2 import TemplateError  # transformers needs it here, too.

        try:
            encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise ValueError(f"the chat template of {self.name} refuses the messages: {error}") from error
        return list(tokenizer(encoded, add_special_tokens=False)["input_ids"])

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens in the vocabulary."""
        return self.definition.bind(self.params["target"]).vocab_size

    @property
    def max_positions(self) -> int | None:
        """The longest text that the model reads, in positions; None where it does not say."""
        told = self.config.max_positions if self.config else None
        return getattr(self.definition, "max_positions", told)

    @property
    def width(self) -> int:
        """D, the size of a hidden state."""
        return self._width_and_taps[0]

    @property
    def taps(self) -> int:
        """How many taps its forward gives: one more than it has layers, or none."""
        return self._width_and_taps[1]

    @functools.cached_property
    def _width_and_taps(self) -> tuple[int, int]:
        def forward(params: Any) -> tuple[Any, Any]:
            bound, token = self.definition.bind(params), jnp.zeros((1, 1), jnp.int32)
            vectors = bound.embed(token)
            block = Block.causal(jnp.ones((1, 1), bool))
            return vectors, bound.forward(vectors, token, bound.init_cache(1, 16, 1), block).taps

        vectors, taps = jax.eval_shape(forward, self.params["target"])
        return vectors.shape[-1], len(taps)

    @functools.cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of every token.

        Raises:
          ValueError: the model has no tokenizer.
        """
        return token_bytes(self._tokenizer(), self.vocab_size)

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer (no tokenizer.json or tokenizer.model, and none in a GGUF file); "
                "prompts must be tokens"
            )
        return self.tokenizer
