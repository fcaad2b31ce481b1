"""The same weights and prompts in transformers, the reference that most users know."""

import dataclasses
import inspect
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval.exact.reference import PAD, require_torch
from eval.timing.measure import MEGABYTE, Sample
from jax_smash.checkpoints import huggingface
from jax_smash.loading import Model

LOOKED_UP = (4, 10)
"""Tokens that transformers' prompt lookup drafts at most, as its warm-up tries them."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A batch as transformers takes it, padded on the left.

    Attributes:
      tokens: ids.
      mask: 0 at padding.
      ragged: some row is padded.
    """

    tokens: Any
    mask: Any
    ragged: bool


class Transformers:
    """transformers on torch, greedy, with its own cache, in the fastest of several ways to drive it.

    The ways are its `generate` with a growing cache, `generate` with a static cache (which compiles the model where
    transformers does so by itself), and the shortest loop that can be written by hand; on a CPU each with a thread a
    core, half of them, and one. Warm-up tries them all.
    """

    name = "transformers"
    is_peer = True

    def __init__(self, model: Model, *, dtype: str, max_new_tokens: int, loaded: Any = None):
        """Saves our weights as a checkpoint and loads it there.

        Args:
          model: ours; its stop tokens end a row.
          dtype: of the weights, as torch names it.
          max_new_tokens: of each row.
          loaded: the `model` of another peer, which holds the same weights already.

        Raises:
          ValueError: torch is not installed, or the model has no configuration to save.
        """
        require_torch()
        import torch

        self.torch = torch
        self.max_new_tokens, self.stop_tokens = max_new_tokens, model.stop_tokens
        self.device = "cuda" if self.torch.cuda.is_available() else "cpu"
        self.model = _load(self.torch, model, dtype).to(self.device) if loaded is None else loaded
        self.ways = self._ways()
        # Small models are slower with many threads, and all are where other work takes the cores.
        cores = os.cpu_count() or 1
        self.threads = (cores,) if self.device == "cuda" else tuple({cores: 0, max(cores // 2, 1): 0, 1: 0})
        self.chosen = (next(iter(self.ways)), cores)
        self.tried: dict[tuple[str, int], float] = {}

    def _ways(self) -> dict[str, Callable[[Inputs], Sample]]:
        ways: dict[str, Callable[[Inputs], Sample]] = {
            "generate": self._generate,
            "generate, static cache": lambda inputs: self._generate(inputs, cache_implementation="static"),
        }
        return ways if self.stop_tokens else ways | {"loop by hand": self._loop}

    def warm_up(self, batches: Sequence[list[list[int]]]) -> None:
        """Tries every way twice on the first batch and keeps the fastest; on CUDA that reads every length once."""
        for threads in self.threads:
            for way in self.ways:
                self.chosen = (way, threads)
                samples = [self.run(batches[0]) for _ in range(2)]
                self.tried[way, threads] = max(sample.decoded / sample.decode_s for sample in samples)
        self.chosen = max(self.tried, key=self.tried.__getitem__)
        if self.device == "cuda":
            # A static cache is compiled for each length of prompts.
            lengths = {max(map(len, batch)): batch for batch in reversed(batches)}
            lengths.pop(max(map(len, batches[0])))
            for batch in lengths.values():
                self.run(batch)

    def run(self, prompts: list[list[int]]) -> Sample:
        """Continues one batch."""
        way, threads = self.chosen
        self.torch.set_num_threads(threads)
        return self.ways[way](self._inputs(prompts))

    def facts(self) -> dict[str, Any]:
        """Returns the way taken and every way's tokens a second in warm-up; memory where the device tells."""
        cuda = self.device == "cuda"
        return {
            "implementation": self.chosen[0],
            "threads": self.chosen[1],
            "tried": [{"implementation": w, "threads": t, "tokens_per_second": x} for (w, t), x in self.tried.items()],
            "compile_s": None,
            "peak_memory_mb": self.torch.cuda.max_memory_allocated() / MEGABYTE if cuda else None,
            "program_memory_mb": None,
        }

    def _inputs(self, prompts: list[list[int]]) -> Inputs:
        longest = max(map(len, prompts))
        tokens = [[PAD] * (longest - len(p)) + p for p in prompts]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        return Inputs(
            tokens=self.torch.tensor(tokens, device=self.device),
            mask=self.torch.tensor(mask, device=self.device),
            ragged=any(len(p) != longest for p in prompts),
        )

    def _now(self) -> float:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def _generate(self, inputs: Inputs, **options: Any) -> Sample:
        from transformers import GenerationConfig, StoppingCriteriaList

        config = GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            eos_token_id=list(self.stop_tokens) or None,
            pad_token_id=PAD,
            **options,
        )
        # What is unset here would be filled in from the model's own.
        self.model.generation_config = config
        # When each forward was done, and how many tokens stood there.
        done: list[tuple[float, int]] = []

        def note(tokens: Any, scores: Any, **rest: Any) -> Any:
            done.append((self._now(), tokens.shape[1] - inputs.tokens.shape[1]))
            return self.torch.zeros(tokens.shape[0], dtype=self.torch.bool, device=tokens.device)

        began = self._now()
        with self.torch.inference_mode():
            whole = self.model.generate(
                inputs.tokens,
                attention_mask=inputs.mask,
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([note]),
            )
        forwards = len(done) - 1
        return self._sample(whole[:, inputs.tokens.shape[1] :], began, *done[0], self._now(), forwards)

    def _loop(self, inputs: Inputs) -> Sample:
        torch = self.torch
        began = self._now()
        with torch.inference_mode():
            # Rows of one length need no mask: making it costs time at every step.
            mask = inputs.mask if inputs.ragged else None
            position = inputs.mask.cumsum(1) - 1
            options = {"use_cache": True, "logits_to_keep": 1}
            # Its name until transformers 5.23, and since.
            cache = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
            out = self.model(inputs.tokens, attention_mask=mask, position_ids=position.clamp(min=0), **options)
            tokens = [out.logits[:, -1].argmax(-1, keepdim=True)]
            first, position = self._now(), position[:, -1:]
            for _ in range(self.max_new_tokens - 1):
                position = position + 1
                if mask is not None:
                    mask = torch.cat([mask, torch.ones_like(position)], dim=1)
                out = self.model(
                    tokens[-1],
                    attention_mask=mask,
                    position_ids=position,
                    **{cache: getattr(out, cache)},
                    **options,
                )
                tokens.append(out.logits[:, -1].argmax(-1, keepdim=True))
            whole = torch.cat(tokens, dim=1)
        return self._sample(whole, began, first, 1, self._now(), self.max_new_tokens - 1)

    def _sample(self, tokens: Any, began: float, first: float, started: int, ended: float, forwards: int) -> Sample:
        """Makes the sample of a batch that had `started` tokens a row at `first`, and made so many forwards since."""
        rows = [_until(row, self.stop_tokens) for row in tokens.tolist()]
        # A row that ends before the others is forwarded on, but to no use.
        by_row = [min(forwards, len(row) - started) for row in rows]
        return Sample(
            tokens=rows,
            started=started * len(rows),
            first_token_s=first - began,
            decode_s=ended - first,
            steps=forwards,
            forwards=sum(by_row),
            forwards_by_row=by_row,
        )


class PromptLookup(Transformers):
    """transformers' own prompt lookup: drafts a chain from where the last tokens stood before, a row at a time.

    Warm-up tries several lengths of the chain.
    """

    name = "transformers-lookup"

    def _ways(self) -> dict[str, Callable[[Inputs], Sample]]:
        def way(length: int) -> Callable[[Inputs], Sample]:
            return lambda inputs: self._generate(inputs, prompt_lookup_num_tokens=length)

        return {f"generate, chain of {length}": way(length) for length in LOOKED_UP}


PEERS = {peer.name: peer for peer in (Transformers, PromptLookup)}


def _load(torch: Any, model: Model, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if model.config is None:
        raise ValueError(f"{model.name} has no configuration that transformers could load")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        huggingface.save_params(path, model.config, model.params["target"])
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    return loaded.eval()


def _until(row: list[int], stops: Sequence[int]) -> list[int]:
    """Returns the tokens up to the first stop token, it included."""
    ends = [i for i, token in enumerate(row) if token in stops]
    return row[: ends[0] + 1] if ends else row
