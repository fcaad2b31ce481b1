"""The fields of a `config.json`: read with the family's defaults, checked, and refused where they ask for more."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import Activation, AttentionKind

LAYER_KINDS: dict[str, AttentionKind] = {"full_attention": "full", "sliding_attention": "sliding"}
"""Hugging Face names of the attention kinds."""

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
"""Hugging Face names of the supported activations."""


class Fields:
    """Reads the fields of one configuration.

    A field that is absent has the family's default, because a writer may leave defaults out. A field that is null is
    None, which can mean something else than its absence.

    Attributes:
      raw: the content of `config.json`.
      family: its `model_type`, named in errors.
    """

    def __init__(self, raw: Mapping[str, Any], family: str, defaults: Mapping[str, Any]):
        self.raw = raw
        self.family = family
        self._defaults = defaults

    def get(self, name: str) -> Any:
        """Returns a field as it is; None where it is absent and has no default."""
        return self.raw.get(name, self._defaults.get(name))

    def integer(self, name: str) -> int:
        """Returns a field that must be a whole number of at least 1."""
        value = self.get(name)
        if value is None:
            raise ValueError(f"config.json of a {self.family} model must have {name}; it is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
        return value

    def number(self, name: str) -> float:
        """Returns a field that must be a number; 0 where it is null."""
        value = self.get(name)
        return 0.0 if value is None else as_number(name, value)

    def flag(self, name: str) -> bool:
        """Returns a field that must be true or false; false where it is null."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false; got {value!r}")
        return bool(value)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Returns a field that may be one token, a list of tokens, or null."""
        value = self.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in values):
            raise ValueError(f"{name} must be a token id or a list of them; got {value!r}")
        return tuple(values)

    def refuse(self, name: str, *accepted: Any) -> None:
        """Checks that a field asks for nothing that is not supported.

        Args:
          name: of the field.
          *accepted: values that change nothing; absence and null always do.

        Raises:
          ValueError: the field has another value.
        """
        value = self.raw.get(name)
        if value is not None and value not in accepted:
            raise ValueError(f"{name}={value!r} is not supported for {self.family}")


def as_number(name: str, value: Any) -> float:
    """Returns a value that must be a number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number; got {value!r}")
    return float(value)


def common_from_hf(fields: Fields, activation: str = "hidden_act") -> dict[str, Any]:
    """Returns the arguments of `ModelConfig` that all families write alike.

    Args:
      fields: of the configuration.
      activation: the field that names the activation.
    """
    name = fields.get(activation)
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation {name!r} ({activation}) is not supported; supported: {', '.join(sorted(ACTIVATIONS))}"
        )
    d_model, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if fields.get("head_dim") is None and d_model % num_heads:
        raise ValueError(
            f"hidden_size must be a multiple of num_attention_heads where head_dim is absent; "
            f"got {d_model} and {num_heads}"
        )
    bos, pad = fields.tokens("bos_token_id"), fields.tokens("pad_token_id")
    return {
        "family": fields.family,
        "vocab_size": fields.integer("vocab_size"),
        "num_layers": fields.integer("num_hidden_layers"),
        "d_model": d_model,
        "num_heads": num_heads,
        "num_kv_heads": num_heads
        if fields.get("num_key_value_heads") is None
        else fields.integer("num_key_value_heads"),
        "head_width": d_model // num_heads if fields.get("head_dim") is None else fields.integer("head_dim"),
        "mlp_width": fields.integer("intermediate_size"),
        "max_positions": fields.integer("max_position_embeddings"),
        "activation": ACTIVATIONS[name],
        "norm_epsilon": fields.number("rms_norm_eps"),
        "tied_head": fields.flag("tie_word_embeddings"),
        "bos_token": bos[0] if bos else None,
        "eos_tokens": fields.tokens("eos_token_id"),
        "pad_token": pad[0] if pad else None,
    }
