"""Our decoding methods as a model of lm-evaluation-harness. Needs the extra `lm-eval`."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

import jax_smash
from eval.scores.engine import Engine
from eval.tasks.choices import log_likelihoods
from eval.tasks.documents import negative_log_likelihoods
from jax_smash.loading import Model

MAX_NEW_TOKENS = 256
"""Of a continuation, where the task does not say."""


class JaxSmashLM(LM):
    """A model under one of our methods, in the harness's protocol.

    Differs: prompts are continued greedily or refused; a task that samples is not supported.
    """

    def __init__(self, model: Model | str, *, method: str = "ar", batch_size: int = 8, context: int | None = None):
        """Loads the model where it is given by name.

        Args:
          model: from `jax_smash.load`, or its argument.
          method: a name of `jax_smash.METHODS`.
          batch_size: texts that are read or decoded together.
          context: tokens that a text may have; None takes the model's own.

        Raises:
          ValueError: the method is unknown, or model and context do not go together.
        """
        super().__init__()
        self.model = model if isinstance(model, Model) else jax_smash.load(model)
        self.engine = Engine(self.model, method=method, batch_size=batch_size, context=context)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns the nats of each continuation behind its context, and whether greedy decoding writes it."""
        pairs = [self.engine.pair(*request.args) for request in requests]
        found = log_likelihoods(self.engine, pairs, what="loglikelihood")
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Returns the nats of each whole text; windows do not overlap, as in the harness's own models."""
        texts = [self.engine.encode_whole(*request.args) for request in requests]
        stride = self.engine.context - max(1, len(self.engine.beginning))
        nats = negative_log_likelihoods(self.engine, texts, stride=stride, what="loglikelihood_rolling")
        for request, value in zip(requests, nats, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, -value)
        return [-value for value in nats]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns the greedy continuation of each prompt, cut before the first stop string.

        Raises:
          ValueError: a task asks for sampling.
        """
        found: dict[int, str] = {}
        for asked, numbers in _groups(requests).items():
            room = self.engine.context - asked.max_new_tokens
            prompts = [self.engine.fit(self.engine.encode(requests[i].args[0]), room) for i in numbers]
            completions = self.engine.continuations(
                prompts, max_new_tokens=asked.max_new_tokens, stop=asked.stop, what="generate_until"
            )
            found |= {i: completion.text for i, completion in zip(numbers, completions, strict=True)}
        for i, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, found[i])
        return [found[i] for i in range(len(requests))]

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness caches requests."""
        return self.model.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the model's chat template; None where chat is not asked for."""
        return self.model.tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation as one text, without the tokenizer's own beginning."""
        tokenizer = self.model.tokenizer
        text = tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        # Every text gets the beginning when it is tokenised; here it would come twice.
        return text.removeprefix(tokenizer.bos_token or "")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a task wants of a continuation; requests that want the same are decoded together."""

    max_new_tokens: int
    stop: tuple[str, ...]


def _groups(requests: Iterable[Instance]) -> dict[_Asked, list[int]]:
    groups: dict[_Asked, list[int]] = {}
    for i, request in enumerate(requests):
        groups.setdefault(_asked(request.args[1]), []).append(i)
    return groups


def _asked(options: dict[str, Any]) -> _Asked:
    if options.get("do_sample") or options.get("temperature"):
        raise ValueError(f"continuations are greedy here; the task asks for {options}")
    stop = options.get("until") or ()
    new = options.get("max_gen_toks") or options.get("max_new_tokens") or MAX_NEW_TOKENS
    return _Asked(max_new_tokens=int(new), stop=(stop,) if isinstance(stop, str) else tuple(filter(None, stop)))
