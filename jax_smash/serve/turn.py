"""One batch of prompts from its beginning to its completions."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from jax_smash.automaton import StreamDecoder
from jax_smash.decode.draft_report import Drafted, drafted_rows
from jax_smash.decode.groups import Smashed, smashed_rows
from jax_smash.decode.programs import PROGRAMS
from jax_smash.finish import REASONS
from jax_smash.loading import Model
from jax_smash.serve.request import Request
from jax_smash.serve.session import Session, TokenLogProb
from jax_smash.sharding import on_host


@dataclasses.dataclass(frozen=True)
class Completion:
    """One continuation of one prompt, and what it cost.

    Attributes:
      prompt: the prompt as given.
      text: the continuation without special tokens, cut before a stop string; "" where there is no tokenizer.
      token_ids: every emitted token, including a stop token.
      prompt_tokens, new_tokens: numbers of tokens.
      finish_reason: `length`, `stop_token` or `stop_string`.
      target_forwards: decode forwards while the row ran, without the prefill.
      mean_accepted_tokens: new tokens behind those that came with the prompt, a forward; None where none was made.
      tokens_per_second: speed of this row while its batch decoded, without compilation and prefill; None for one token.
      time_to_first_token_s: from the start of the prefill to the first token on the host, without compilation.
      sample: index of the continuation among those of its prompt.
      log_probs, prompt_log_probs: a record a token, but for the prompt's first; None unless asked for.
      drafted: how the drafts of the row fared; None in plain decoding.
      smashed: the slots that its tokens took; None where each token has a slot of its own.
    """

    prompt: Any
    text: str
    token_ids: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    target_forwards: int
    mean_accepted_tokens: float | None
    tokens_per_second: float | None
    time_to_first_token_s: float
    sample: int = 0
    log_probs: list[TokenLogProb] | None = None
    prompt_log_probs: list[TokenLogProb] | None = None
    drafted: Drafted | None = None
    smashed: Smashed | None = None


class Turn:
    """A batch of prompts while it is read and decoded: passes on the text, and measures the times.

    Attributes:
      session: that decodes.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        request: Request,
        batch: range,
        *,
        tree: str = "",
        on_text: Callable[[int, str], None] | None = None,
        on_tokens: Callable[[int], None] | None = None,
        skip: int = 0,
    ):
        """Begins a batch; decodes nothing.

        Args:
          model: that decodes.
          session: with a row for each prompt of the batch, and rows that sit out behind them.
          request: all prompts.
          batch: which of them.
          tree: of the method's drafts, for the completions.
          on_text, on_tokens, skip: as in `generate`.
        """
        self.session = session
        self._skip, self._tree = skip, tree
        self._request, self._batch = request, batch
        self._on_text, self._on_tokens = on_text, on_tokens
        self._rows = len(batch) * session.samples
        decoding = range(self._rows) if model.tokenizer is not None else ()
        self._decoders = [StreamDecoder(model.token_bytes, request.stop) for _ in decoding]
        self._texts = [""] * self._rows
        self._shown = [0] * self._rows
        self._started = [0] * self._rows
        self._first_token_s = self._decode_s = 0.0

    def read(self) -> None:
        """Reads the prompts, which gives the first token of each row."""
        prompts = [self._request.tokens[i] for i in self._batch]
        self.begin(lambda: self.session.read(prompts + [[]] * (self.session.prompts - len(prompts))))

    def begin(self, read: Callable[[], None]) -> None:
        """Lets the prompts be read, in whatever way, up to the first token of each row."""
        began, compiled = time.perf_counter(), PROGRAMS.seconds
        read()
        self._show()
        # A group that comes with the prompt counts as not decoded.
        self._started = self._shown
        self._first_token_s = time.perf_counter() - began - (PROGRAMS.seconds - compiled)

    def decode(self, steps: int) -> tuple[list[Completion], Any]:
        """Decodes until every row has ended, `steps` steps a call.

        Returns:
          What became of each row, and what the rows shared.
        """
        running = True
        while running:
            began, compiled = time.perf_counter(), PROGRAMS.seconds
            running = self.session.run(steps)
            self._decode_s += time.perf_counter() - began - (PROGRAMS.seconds - compiled)
            self._show()
        for row, decoder in enumerate(self._decoders):
            self._say(row, decoder.finish())
        return list(self._completions()), self.session.state.shared.memory

    def _completions(self) -> Iterator[Completion]:
        """Yields the completion of each row."""
        rows = self.session.state.rows
        finish, forwards = on_host((rows.finish, rows.forwards))
        outputs, log_probs = self.session.outputs(), self.session.log_probs()
        prompt_log_probs = self.session.prompt_log_probs
        method, sized = self.session.method, self.session.sized
        drafted = drafted_rows(
            self.session.state, tree=self._tree, source=method.source, curve=method.curve, sized=sized
        )
        smashed = smashed_rows(self.session.state)
        for row in range(self._rows):
            prompt, sample = divmod(row, self.session.samples)
            decoded = len(outputs[row]) - self._started[row]
            yield Completion(
                prompt=self._request.prompts[self._batch[prompt]],
                text=self._texts[row],
                token_ids=outputs[row],
                prompt_tokens=len(self._request.tokens[self._batch[prompt]]),
                new_tokens=len(outputs[row]),
                finish_reason=REASONS[finish[row]],
                target_forwards=int(forwards[row]),
                mean_accepted_tokens=decoded / int(forwards[row]) if forwards[row] else None,
                tokens_per_second=decoded / self._decode_s if decoded else None,
                time_to_first_token_s=self._first_token_s,
                sample=sample,
                log_probs=None if log_probs is None else log_probs[row],
                prompt_log_probs=None if prompt_log_probs is None else prompt_log_probs[row],
                drafted=None if drafted is None else drafted[row],
                smashed=None if smashed is None else smashed[row],
            )

    def _show(self) -> None:
        outputs = self.session.outputs()[: self._rows]
        if self._on_tokens is not None:
            self._on_tokens(sum(map(len, outputs)) - sum(self._shown))
        for row, decoder in enumerate(self._decoders):
            self._say(row, decoder.feed(outputs[row][self._shown[row] :]))
        self._shown = [len(tokens) for tokens in outputs]

    def _say(self, row: int, text: str) -> None:
        self._texts[row] += text
        number = self._batch.start * self.session.samples + row
        if text and self._on_text is not None and number >= self._skip:
            self._on_text(number, text)
