"""What a trained model says, for its card."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp

import jax_smash
from jax_smash.hosts import decided

PROMPTS = (
    "Once upon a time, there was a little girl named",
    "The old king looked out of the window and",
    "Tom and his sister found a big box in the garden. They",
)
SAMPLE_TOKENS = 80
CHATS = ("Hi! I would like to book a table at a restaurant.", "Do you like to read books?")


def greedy_samples(
    model: Path, prompts: tuple[str, ...] = PROMPTS, chats: tuple[str, ...] = CHATS
) -> list[tuple[str, str]]:
    """Returns each prompt and each first turn of a dialogue with its greedy continuation, in float32.

    What has no room in the model's context is left out. Of several hosts the first one asks it.
    """
    return [tuple(pair) for pair in decided(lambda: _samples(model, prompts, chats))]


def _samples(model: Path, prompts: tuple[str, ...], chats: tuple[str, ...]) -> list[tuple[str, str]]:
    loaded = jax_smash.load(model, dtype=jnp.float32)
    room = loaded.config.max_positions - SAMPLE_TOKENS
    turns = {chat: loaded.encode_chat([{"role": "user", "content": chat}]) for chat in chats}
    tokens = {prompt: loaded.encode(prompt) for prompt in prompts} | turns
    asked = {text: ids for text, ids in tokens.items() if len(ids) <= room}
    if not asked:
        return []
    completions = jax_smash.generate(loaded, list(asked.values()), max_new_tokens=SAMPLE_TOKENS)
    return [(text, completion.text) for text, completion in zip(asked, completions, strict=True)]
