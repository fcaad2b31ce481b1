"""What every task asks of a model under a decoding method: continuations, and log-probabilities of given text."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_smash
from eval.reports.report import progress
from eval.scores.smashing import Compression
from jax_smash.decode.forced import Prompts, forced_log_probs
from jax_smash.decode.state import LogProbs
from jax_smash.loading import Model
from jax_smash.methods import make_method
from jax_smash.protocols import longest_block
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session, TokenLogProb
from jax_smash.serve.turn import Completion
from jax_smash.shapes import bucket
from jax_smash.sharding import mesh_of, on_host, on_mesh, put
from jax_smash.smash.options import SmashOptions

LEAST_SLOTS = 64
"""Shorter texts share the programs of this length."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A continuation behind its context.

    Attributes:
      tokens: of both together.
      scored: how many of the last ones are the continuation's.
    """

    tokens: list[int]
    scored: int


class Engine:
    """A model and a decoding method, asked in batches of similar length.

    A text longer than the context loses tokens behind its beginning: what stands last is what is asked.

    Attributes:
      model, method: what is measured.
      batch_size: texts that are read or decoded together.
      context: tokens that a text may have at most, new ones included.
      by_steps: tokens that are scored behind a context are read by steps of plain decoding, as what is decoded is; the
        context itself, but for its last token, is read as a prompt.
      beginning: tokens that the tokenizer puts before every text; may be empty.
      opening: tokens that a text is scored behind where nothing else stands before it: the beginning, else the
        tokenizer's token for the beginning or the end of a text; empty where it has none of these.
      compression: of what was decoded since it was set.
    """

    def __init__(
        self,
        model: Model,
        *,
        method: str = "ar",
        smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
        batch_size: int = 8,
        context: int | None = None,
        by_steps: bool = False,
    ):
        """Checks that method, model and context go together; allocates nothing.

        Raises:
          ValueError: the method is unknown, the model has no tokenizer, or the context is out of range.
        """
        longest = model.config.max_positions if model.config else None
        if context is not None and (context < 2 or context > (longest or context)):
            raise ValueError(f"context must be from 2 to the model's {longest or 'own'}; got {context}")
        if context is None and longest is None:
            raise ValueError(f"{model.name} does not tell its context: give one")
        self.model, self.method, self.batch_size, self.by_steps = model, method, batch_size, by_steps
        self.context: int = context or longest or 0
        self.smash, self.compression = smash, Compression()
        self._made = make_method(model, method, smash=smash)
        self.beginning = model.encode("")
        tokenizer = model.tokenizer
        spare = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        self.opening = self.beginning or ([] if spare is None else [spare])

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, as the tokenizer makes them; the opening for a text without any."""
        return self.model.encode(text) or [*self.opening]

    def encode_whole(self, text: str) -> list[int]:
        """Returns the tokens of a text behind the opening, so that its first token can be scored too."""
        return self.opening + self.model.encode(text)[len(self.beginning) :]

    def pair(self, context: str, continuation: str) -> Pair:
        """Returns the tokens of a continuation behind its context, tokenised as one text.

        White space at the context's end goes to the continuation, as tokenizers join it to the next word. A token that
        lies across the border counts as the continuation's. Without a context, the continuation stands behind the
        opening.
        """
        stripped = context.rstrip()
        encode = self.encode if stripped else self.encode_whole
        before, whole = encode(stripped), encode(context + continuation)
        shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        # The first token of all has nothing before it to follow from.
        return Pair(tokens=whole, scored=len(whole) - max(1, min(shared, len(whole))))

    def fit(self, tokens: list[int], room: int) -> list[int]:
        """Returns the beginning and the last tokens of a text, at most `room` together.

        Raises:
          ValueError: there is room for the beginning at most.
        """
        if len(tokens) <= room:
            return tokens
        kept = room - len(self.beginning)
        if kept < 1:
            raise ValueError(f"the context of {self.context} tokens must have room for a prompt; it has {room} left")
        return self.beginning + tokens[-kept:]

    def prompt(self, text: str, *, chat: bool = False) -> list[int]:
        """Returns the tokens of a prompt, or of the same as a user's message in the model's chat template.

        Spaces at a prompt's end are left to the continuation: a tokenizer joins them to the next word.

        Raises:
          ValueError: the model has no chat template.
        """
        return self.model.encode_chat([{"role": "user", "content": text}]) if chat else self.encode(text.rstrip(" "))

    def continuations(
        self,
        prompts: Sequence[list[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        min_new_tokens: int = 0,
        what: str = "prompts",
    ) -> list[Completion]:
        """Returns the greedy continuation of each prompt, stop strings and what follows them cut from its text.

        Args:
          prompts: tokens, made to fit.
          max_new_tokens: of each.
          stop: strings that end a continuation.
          min_new_tokens: before which no stop token is written.
          what: is shown beside the progress.
        """
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        with progress(what, len(prompts)) as advance:
            completions = jax_smash.generate(
                self.model,
                [prompts[i] for i in order],
                method=self.method,
                smash=self.smash,
                max_new_tokens=max_new_tokens,
                sampling=SamplingOptions(min_new_tokens=min_new_tokens),
                stop=tuple(stop),
                batch_size=self.batch_size,
                on_completion=lambda completion: advance(),
            )
        self.compression.add((len(prompts[i]), made.smashed) for i, made in zip(order, completions, strict=True))
        found = dict(zip(order, completions, strict=True))
        return [found[i] for i in range(len(prompts))]

    def log_probs(
        self,
        texts: Sequence[list[int]],
        *,
        what: str = "texts",
        decoded: bool = False,
        scored: Sequence[int] | None = None,
    ) -> list[list[TokenLogProb]]:
        """Returns a record of each token but the first of each text: its log-probability in nats, and the likeliest.

        Args:
          texts: tokens, at most the context's.
          what: is shown beside the progress.
          decoded: every token is read by a step of plain decoding, whatever the method; else the method's own prefill
            reads them.
          scored: how many of each text's last tokens matter. With `by_steps` the records are of these alone.

        Raises:
          ValueError: the model's logits are not numbers.
        """
        if self.by_steps and scored is not None and not decoded:
            return self._behind_contexts(texts, scored, what)
        read = self._decode if decoded else self._read
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found: dict[int, list[TokenLogProb]] = {}
        with progress(what, len(texts)) as advance:
            for first in range(0, len(order), self.batch_size):
                batch = order[first : first + self.batch_size]
                for i, record in zip(batch, read([texts[i] for i in batch]), strict=False):
                    found[i] = record
                    advance()
        return [found[i] for i in range(len(texts))]

    def _read(self, texts: list[list[int]]) -> list[list[TokenLogProb]]:
        # Rows that sit out fill the last batch up, so that it needs no program of its own.
        rows = texts + [[]] * (self.batch_size - len(texts))
        session = Session(
            self.model,
            self._made,
            slots=bucket(max(map(len, texts)), least=LEAST_SLOTS),
            max_new_tokens=1,
            sampling=[SamplingOptions()] * len(rows),
            seeds=[0] * len(rows),
            prompt_log_probs=1,
        )
        session.read(rows)
        assert session.prompt_log_probs is not None
        return session.prompt_log_probs

    def _behind_contexts(
        self, texts: Sequence[list[int]], scored: Sequence[int], what: str
    ) -> list[list[TokenLogProb]]:
        # The context's last token is read by a step: the first scored one is predicted by what the policy has left it.
        reads = [max(1, len(text) - count - 1) for text, count in zip(texts, scored, strict=True)]
        longest = longest_block(self.model.definition.bind(self.model.params["target"]))
        if longest is not None:  # A cache that moves on while a longer prompt is read: the rest is read by steps, too.
            reads = [min(read, longest) for read in reads]
        contexts = [tuple(text[:read]) for text, read in zip(texts, reads, strict=True)]
        further: dict[tuple[int, ...], int] = {}
        for context, text in zip(contexts, texts, strict=True):
            further[context] = max(further.get(context, 0), len(text) - len(context))
        order = sorted(range(len(texts)), key=lambda i: (further[contexts[i]], contexts[i]))
        batches = [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]
        # One program for all: texts are as wide as the longest, and a batch has as many contexts as any.
        width = bucket(max(map(len, texts)), least=LEAST_SLOTS)
        room = bucket(max(reads)) if longest is None else min(bucket(max(reads)), longest)
        shape = max(len({contexts[i] for i in batch}) for batch in batches), room
        found: dict[int, list[TokenLogProb]] = {}
        with progress(what, len(texts)) as advance:
            for batch in batches:
                records = self._decode([texts[i] for i in batch], width, [contexts[i] for i in batch], shape)
                for i, record in zip(batch, records, strict=True):
                    found[i] = record[len(record) - scored[i] :]
                    advance()
        return [found[i] for i in range(len(texts))]

    def _decode(
        self,
        texts: list[list[int]],
        width: int = 0,
        contexts: Sequence[tuple[int, ...]] | None = None,
        shape: tuple[int, int] = (0, 0),
    ) -> list[list[TokenLogProb]]:
        width = max(width, bucket(max(map(len, texts)), least=LEAST_SLOTS))
        tokens = np.zeros((self.batch_size, width), np.int32)
        lengths = np.ones((self.batch_size,), np.int32)  # Rows of one token sit out.
        for row, text in enumerate(texts):
            tokens[row, : len(text)], lengths[row] = text, len(text)
        mesh = mesh_of(self.model.params["target"])
        prompts = None if contexts is None else _prompts(contexts, self.batch_size, shape)
        placed = jax.tree.map(lambda x: put(x, mesh, "batch"), (jnp.asarray(tokens), jnp.asarray(lengths), prompts))
        with on_mesh(mesh):
            found = self._records(*placed)
        chosen, values, ids = on_host((found.chosen, found.top_values, found.top_tokens))
        values, ids = values[..., 0], ids[..., 0]
        if np.isnan(chosen).any():
            raise ValueError(f"the logits of {self.model.name} are not numbers")
        read = [1] * len(texts) if contexts is None else [len(context) for context in contexts]
        return [
            [
                TokenLogProb(token, float(chosen[row, i]), ((int(ids[row, i]), float(values[row, i])),))
                for i, token in enumerate(text[read[row] :])
            ]
            for row, text in enumerate(texts)
        ]

    def _records(self, tokens: jax.Array, lengths: jax.Array, prompts: Prompts | None) -> LogProbs:
        return self._forced(self.model.params["target"], tokens, lengths, prompts=prompts)

    @functools.cached_property
    def _forced(self) -> Any:
        return jax.jit(functools.partial(forced_log_probs, self.model.definition, n=1))


def _prompts(contexts: Sequence[tuple[int, ...]], rows: int, shape: tuple[int, int]) -> Prompts:
    """Returns contexts, each once, in an array of a shape, and which of them the rows of a batch stand behind."""
    different = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    tokens, lengths, of = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32), np.zeros(rows, np.int32)
    for context, i in different.items():
        tokens[i, : len(context)], lengths[i] = context, len(context)
    of[: len(contexts)] = [different[context] for context in contexts]
    return Prompts(tokens=jnp.asarray(tokens), lengths=jnp.asarray(lengths), of=jnp.asarray(of))
