"""transformers as the reference of what a model should say."""

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_smash
from jax_smash.checkpoints.gguf import is_gguf
from jax_smash.loading import Model

PAD = 0
"""Fills rows on the left and is masked: any id will do."""

VECTOR_SPREAD = 0.2
"""Standard deviation of what is added to norms and biases, which start as ones and zeros and would test nothing."""

TIED_SCALE = 0.3
"""Multiplies embeddings: where they are large beside the layers' output, a tied head repeats the last token."""


def require_torch() -> None:
    """Checks for torch without importing it, which takes seconds and memory that would be counted as ours.

    Raises:
      ValueError: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError("comparing with transformers needs torch: install the extra `peers`")


class Reference:
    """A random model on torch, float32, with attention as its authors wrote it down."""

    def __init__(self, fields: Mapping[str, Any], *, seed: int):
        """Makes the model.

        Args:
          fields: of its `config.json`.
          seed: of its weights.

        Raises:
          ValueError: torch is not installed.
        """
        require_torch()
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.torch = torch
        # Models this small gain nothing from more threads, and lose the time to wake them.
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        options = {name: value for name, value in fields.items() if name != "model_type"}
        config = AutoConfig.for_model(fields["model_type"], **options)
        # `eager` is the one implementation that has every family's softcaps.
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(VECTOR_SPREAD * torch.randn_like(parameter))
            model.get_input_embeddings().weight.mul_(TIED_SCALE)
        self.model = model.eval()

    def save(self, path: Path) -> None:
        """Writes the model as a checkpoint."""
        self.model.save_pretrained(path)

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Returns the greedy continuation of each prompt, decoded together, padded on the left."""
        longest = max(map(len, prompts))
        tokens = self.torch.tensor([[PAD] * (longest - len(p)) + list(p) for p in prompts])
        mask = self.torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with self.torch.inference_mode():
            whole = self.model.generate(
                tokens, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=PAD
            )
        return whole[:, longest:].tolist()

    def logits(self, prompt: Sequence[int], new: Sequence[int]) -> np.ndarray:
        """Returns the logits from which each new token would be chosen, `[new tokens, V]`, in one plain forward."""
        tokens = self.torch.tensor([[*prompt, *new]])
        with self.torch.inference_mode():
            out = self.model(tokens, use_cache=False).logits[0]
        return out[len(prompt) - 1 : -1].numpy()


class LoadedReference(Reference):
    """A checkpoint as transformers itself reads it, float32: a directory, or a GGUF file."""

    def __init__(self, path: Path):
        """Loads the checkpoint. No token ends a text.

        Args:
          path: a directory in Hugging Face's layout, or a GGUF file, which needs the packages `gguf` and `accelerate`.

        Raises:
          ValueError: torch is not installed, or transformers does not read the whole file.
        """
        require_torch()
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.torch = torch
        torch.set_num_threads(os.cpu_count() or 1)
        place = {"gguf_file": path.name} if is_gguf(path) else {}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path.parent if place else path,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            local_files_only=True,
            **place,
        )
        model, report = loaded
        left = [*report["missing_keys"], *report["unexpected_keys"]]
        if left:
            raise ValueError(f"transformers does not read {path} whole: {left[0]} is missing or unexpected")
        model.generation_config.eos_token_id = None
        self.model = model.eval()


def both(fields: Mapping[str, Any], *, seed: int, mesh: str | None = None) -> tuple[Model, Reference]:
    """Makes a random model and loads it on our side, by way of a checkpoint in a temporary folder."""
    reference = Reference(fields, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        reference.save(Path(folder))
        model = jax_smash.load(folder, dtype=jnp.float32, mesh=mesh)
    return model, reference
