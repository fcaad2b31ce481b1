"""Rows on the device, driven from the host: read prompts, decode, read again."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.automaton import TokenAutomaton
from jax_smash.decode.loop import Chunk, decode, init_rows, open_turn, prefill, start
from jax_smash.decode.programs import PROGRAMS
from jax_smash.decode.score import score
from jax_smash.decode.sized import SizedCalls, is_sized
from jax_smash.decode.state import DecodeState, Shared, lay_out, take_rows
from jax_smash.finish import NOT_A_NUMBER, RUNNING
from jax_smash.hosts import decided
from jax_smash.loading import Model
from jax_smash.methods import Method
from jax_smash.models.rope import reach_of_turn
from jax_smash.plan import check_memory, prefill_chunk, shard_bytes, tree_bytes
from jax_smash.protocols import longest_block
from jax_smash.pytree import replace
from jax_smash.quantise import activation_dtype
from jax_smash.sampling import SamplingOptions, processors_for, row_keys
from jax_smash.shapes import bucket, chunks
from jax_smash.sharding import mesh_of, on_host, on_mesh, put, share_of, spans_hosts

TokenLists = Sequence[Sequence[int] | np.ndarray | jax.Array]


@dataclasses.dataclass(frozen=True)
class TokenLogProb:
    """A token's log-probability in nats, and the likeliest tokens in its place with theirs, likeliest first."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...]


class Session:
    """A batch of rows that decode together, over one turn or many.

    Every size is fixed when the session is made. It therefore compiles one prefill per length bucket and one loop, and
    a second session of the same sizes compiles nothing.

    Attributes:
      mesh: the devices that the model's parameters lie on, and the rows with them; None for one device.
      state: what is on the device. Every call replaces it and consumes the old one.
      sized: what divides steps into calls where trees are sized; None where they are not.
      prompt_log_probs: a list per row, from the last `read`, with an entry for each prompt token. The first token of a
        text has none; that of a later turn has one, for it follows the reply. None unless asked for.
    """

    def __init__(
        self,
        model: Model,
        method: Method,
        *,
        slots: int,
        max_new_tokens: int,
        sampling: Sequence[SamplingOptions],
        seeds: Sequence[int],
        samples: int = 1,
        among: Sequence[SamplingOptions] = (),
        stops: TokenAutomaton | None = None,
        grammar: TokenAutomaton | None = None,
        log_probs: int | None = None,
        prompt_log_probs: int | None = None,
        memory: Any = None,
    ):
        """Allocates one row per prompt. Once the prompts have been read, each row is repeated `samples` times.

        Args:
          model: the model.
          method: how to decode. One made with `sampled=False` takes greedy rows alone.
          slots: the cache's capacity for each row, in slots.
          max_new_tokens: the most tokens that a row may emit in one turn.
          sampling: how tokens are chosen, one for each prompt.
          seeds: one for each prompt. The noise of a row depends only on its seed and sample number.
          samples: continuations of each prompt.
          among: options of other batches that should share this session's programs.
          stops: the automaton of the stop strings.
          grammar: the automaton that constrains the output.
          log_probs: how many likeliest tokens to record beside each emitted one, as the method was made to; None for no
            record.
          prompt_log_probs: the same for prompt tokens.
          memory: what the rows of an earlier session shared, to continue from; None starts with the method's own.

        Raises:
          MemoryError: the rows do not fit the device.
          ValueError: a row samples or records are asked for, and the method was not made for that.
        """
        _check_sampled(method, sampling)
        told = getattr(method.strategy, "log_probs", log_probs)
        if log_probs is not None and told != log_probs:
            raise ValueError(
                f"log_probs is {log_probs}, but method {method.name} was made with log_probs={told}: they must be equal"
            )
        self.model, self.method, self.slots, self.samples = model, method, slots, samples
        self.max_new_tokens, self.mesh = max_new_tokens, mesh_of(model.params)
        self.prompt_log_probs: list[list[TokenLogProb]] | None = None
        self._sampling, self._seeds, self._among = list(sampling), list(seeds), list(among)
        self._stops, self._grammar, self._prompt_top = stops, grammar, prompt_log_probs
        batch = len(self._sampling)
        dtype = activation_dtype(model.params["target"])
        held = shard_bytes(method.params)
        # By the first host's memory: programs of another width would wait for each other in vain.
        chunk = decided(
            lambda: prefill_chunk(model.config, batch=batch, slots=slots, dtype=dtype, held=held),
            shared=spans_hosts(self.mesh),
        )
        longest = longest_block(model.definition.bind(model.params["target"]))
        self._chunk = min(chunk, bucket(slots), longest or chunk, method.longest_piece or chunk)
        shared = Shared(
            processors=self._processors(1),
            stop_tokens=jnp.asarray(model.stop_tokens or (-1,), jnp.int32),
            stops=jax.tree.map(jnp.copy, stops),
            memory=jax.tree.map(jnp.copy, method.memory if memory is None else memory),
        )
        made = functools.partial(
            init_rows,
            method.strategy,
            slots=slots,
            output=bucket(max_new_tokens),
            block=max(self._chunk, method.strategy.block),
            log_probs=log_probs,
        )
        if spans_hosts(self.mesh):
            shared = jax.tree.map(lambda x: put(x, self.mesh), shared)
        arrays = (method.params, shared, put(row_keys(self._seeds), self.mesh, "batch"))
        with on_mesh(self.mesh):
            shares = lay_out(jax.eval_shape(made, *arrays), lambda x, *axes: share_of(x, self.mesh, *axes))
            # Where samples share a prompt, its rows are still there while they are copied.
            copies = samples + (samples > 1)
            check_memory(rows=tree_bytes(shares) * copies, held=held, batch=batch * copies, slots=slots)
            rows = made(*arrays)
        self.state = self._placed(DecodeState(rows=rows, shared=shared))
        self.sized = SizedCalls(method.follower, self.mesh) if is_sized(shared.memory) else None
        self._fanned_out = samples == 1
        # For rows that sit a turn out: their last emitted tokens, which are not in the cache.
        self._unread: list[list[int]] = [[] for _ in self._sampling]

    def __repr__(self) -> str:
        """Says what decodes and how large it is."""
        rows = f"{self.batch} rows of {self.slots} slots and at most {self.max_new_tokens} new tokens"
        return f"Session({self.model.name!r}, method {self.method.name}; {rows})"

    @property
    def prompts(self) -> int:
        """Prompts that the first turn takes."""
        return len(self._sampling)

    @property
    def batch(self) -> int:
        """Rows that decode."""
        return len(self._sampling) * self.samples

    def read(self, prompts: TokenLists, *, limits: Sequence[int] | None = None) -> None:
        """Reads a prompt into each row, after what the row holds, and emits the first token or group of each row.

        Args:
          prompts: the tokens of each row; a row with an empty prompt sits this turn out. In a session with several
            samples, the first turn takes one prompt for all samples of a row.
          limits: new tokens for each row, at most `max_new_tokens`.

        Raises:
          ValueError: there is not one prompt and one limit a row, a token or a limit is out of range, the prompts or
            their continuations do not fit the cache (nothing has changed then), or the model's logits are not numbers.
        """
        rows = self.state.rows
        self._check_turn(prompts, limits)
        tails = self._tails()
        texts = [tail + prompt if prompt else [] for tail, prompt in zip(tails, map(_ints, prompts), strict=True)]
        limit = np.full(len(texts), self.max_new_tokens) if limits is None else np.asarray(limits)
        limit = np.where([bool(t) for t in texts], limit, 0).astype(np.int32)
        self._check_room(texts, limit)
        reach = self._reach(texts, limit)
        self._unread = [[] if text else tail for text, tail in zip(texts, tails, strict=True)]
        stop = jnp.zeros_like(rows.stop) if self._stops is None else self._stops.start(len(texts))
        rows = open_turn(rows, limit=jnp.asarray(limit), stop=stop, reach=reach)
        self.state = self._placed(replace(self.state, rows=rows))
        self._prefill(texts, [len(tail) for tail in tails])
        if not self._fanned_out:
            self._fan_out()
        self.state = PROGRAMS.call(start, self.method.strategy, self.method.params, self.state)
        self._finish()

    def run(self, steps: int) -> bool:
        """Decodes at most `steps` steps and returns whether some row still runs.

        Raises:
          ValueError: the model's logits are not numbers.
        """
        if self.sized is None:
            self.state, _ = self._called(self.state, steps)
            return self._running()
        left = steps
        while left and self._running():
            self.state, made = self.sized.call(self.state, left, self._called)
            left -= made
        return self._running()

    def outputs(self) -> list[list[int]]:
        """Returns the tokens that each row has emitted in this turn."""
        output, length = on_host((self.state.rows.output, self.state.rows.output_length))
        return [row[:n].tolist() for row, n in zip(output, length, strict=True)]

    def log_probs(self) -> list[list[TokenLogProb]] | None:
        """Returns the records of the emitted tokens, a list per row; None unless asked for."""
        if self.state.rows.log_probs is None:
            return None
        record, outputs = on_host(self.state.rows.log_probs), self.outputs()
        return [
            [
                _entry(token, record.chosen[row, i], record.top_values[row, i], record.top_tokens[row, i])
                for i, token in enumerate(tokens)
            ]
            for row, tokens in enumerate(outputs)
        ]

    def _tails(self) -> list[list[int]]:
        """Returns the emitted tokens of each row that are not in the cache."""
        rows = self.state.rows
        output, length, unread = on_host((rows.output, rows.output_length, rows.unread))
        return [
            row[n - count : n].tolist() if count else kept
            for row, n, count, kept in zip(output, length, unread, self._unread, strict=True)
        ]

    def _check_turn(self, prompts: TokenLists, limits: Sequence[int] | None) -> None:
        """Refuses a turn that is not of these rows, of this vocabulary or of this room for what is emitted."""
        rows = len(self._unread)
        for name, given in (("prompts", prompts), ("limits", limits)):
            if given is not None and len(given) != rows:
                raise ValueError(f"there must be one of {name} for each of {rows} rows; got {len(given)}")
        for row, limit in enumerate(() if limits is None else limits):
            if not 0 <= limit <= self.max_new_tokens:
                raise ValueError(f"the limit of row {row} must be from 0 to {self.max_new_tokens} tokens; got {limit}")
        vocab_size = self.model.vocab_size
        for row, prompt in enumerate(prompts):
            wrong = next((t for t in _ints(prompt) if not 0 <= t < vocab_size), None)
            if wrong is not None:
                raise ValueError(f"row {row}: tokens must be from 0 to {vocab_size - 1}; got {wrong}")

    def _check_room(self, texts: list[list[int]], limit: np.ndarray) -> None:
        """Refuses texts that do not fit the cache, or that run past the model's context."""
        rows = self.state.rows
        slots, length, unread = on_host((rows.cache.slot_length, rows.token_length, rows.unread))
        for row, text in enumerate(texts):
            if not text:
                continue
            # The last new token is never cached; of the others, each may need a slot of its own.
            more, held = len(text) + max(int(limit[row]) - 1, 0), int(slots[row])
            if held + more > self.slots:
                raise ValueError(
                    f"row {row} needs {held + more} slots ({held} held, {len(text)} prompt, {limit[row]} new); "
                    f"the cache has {self.slots}"
                )
            tokens = int(length[row] - unread[row])
            longest = self.model.max_positions
            if longest and tokens + more > longest:
                raise ValueError(
                    f"row {row} needs {tokens + more} positions ({tokens} taken, {len(text)} prompt, {limit[row]} new);"
                    f" the model's context has {longest}"
                )

    def _reach(self, texts: list[list[int]], limit: np.ndarray) -> jax.Array | None:
        """Returns the positions that each row's rotary embedding is made for; None where it does not depend on them.

        Raises:
          ValueError: a row holds entries that are rotated for a shorter text.
        """
        config, rows = self.model.config, self.state.rows
        if config is None or not config.follows_length:
            return None
        length, unread, before = on_host((rows.token_length, rows.unread, rows.cache.reach))
        return jnp.asarray(
            [
                reach_of_turn(config, held=int(n - u), before=int(old), prompt=len(text), new=max(int(new) - 1, 0))
                if text
                else int(old)
                for n, u, old, text, new in zip(length, unread, before, texts, limit, strict=True)
            ],
            jnp.int32,
        )

    def _placed(self, state: DecodeState) -> DecodeState:
        """Returns a state laid out as the programs expect; what the host changes may lie elsewhere."""
        return lay_out(state, lambda x, *axes: put(x, self.mesh, *axes))

    def _called(
        self, state: DecodeState, steps: int, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[DecodeState, float]:
        """Calls the loop once. Returns the state, and the seconds by a clock that this took."""
        count = put(jnp.asarray(steps, jnp.int32), self.mesh)
        program = PROGRAMS.program(decode, self.method.strategy, self.method.params, state, count)
        began = clock()
        state = program(self.method.params, state, count)
        jax.block_until_ready(state.rows.finish)
        return state, clock() - began

    def _running(self) -> bool:
        return bool((self._finish() == RUNNING).any())

    def _finish(self) -> np.ndarray:
        finish = on_host(self.state.rows.finish)
        if (finish == NOT_A_NUMBER).any():
            row = int(np.argmax(finish == NOT_A_NUMBER))
            raise ValueError(f"logits are not numbers in row {row}: check the weights")
        return finish

    def _prefill(self, texts: list[list[int]], emitted: list[int]) -> None:
        """Reads texts, which begin with so many tokens that a row emitted before."""
        asked = self._prompt_top is not None
        self.prompt_log_probs = [[] for _ in texts] if asked else None
        offset = 0
        for width in chunks(max(len(t) for t in texts), self._chunk):
            tokens, following = np.zeros((2, len(texts), width), np.int32)
            valid = np.zeros((len(texts), width), bool)
            for row, text in enumerate(texts):
                piece, after = text[offset : offset + width], text[offset + 1 : offset + width + 1]
                tokens[row, : len(piece)], valid[row, : len(piece)] = piece, True
                following[row, : len(after)] = after
            chunk = Chunk(
                tokens=put(jnp.asarray(tokens), self.mesh, "batch"), valid=put(jnp.asarray(valid), self.mesh, "batch")
            )
            self.state, hidden = PROGRAMS.call(prefill, self.method.strategy, self.method.params, self.state, chunk)
            if asked:
                with on_mesh(self.mesh):
                    record = score(
                        self.model.definition,
                        self.model.params,
                        hidden,
                        put(following, self.mesh, "batch"),
                        self._prompt_top,
                    )
                self._record(on_host(record), texts, emitted, offset, width)
            offset += width

    def _record(self, record: Any, texts: list[list[int]], emitted: list[int], offset: int, width: int) -> None:
        assert self.prompt_log_probs is not None
        chosen, values, tokens = record
        for row, text in enumerate(texts):
            for i in range(max(emitted[row] - 1 - offset, 0), min(width, len(text) - 1 - offset)):
                entry = _entry(text[offset + i + 1], chosen[row, i], values[row, i], tokens[row, i])
                self.prompt_log_probs[row].append(entry)

    def _fan_out(self) -> None:
        index = np.repeat(np.arange(len(self._sampling), dtype=np.int32), self.samples)
        with on_mesh(self.mesh):
            rows = take_rows(self.state.rows, put(jnp.asarray(index), self.mesh))
        self.state = self._placed(
            DecodeState(
                rows=replace(rows, key=row_keys(self._seeds, samples=self.samples)),
                shared=replace(self.state.shared, processors=self._processors(self.samples)),
            )
        )
        if self.prompt_log_probs is not None:
            self.prompt_log_probs = [self.prompt_log_probs[i] for i in index]
        self._unread = [[] for _ in index]
        self._fanned_out = True

    def _processors(self, samples: int) -> tuple[Any, ...]:
        processors = processors_for(
            [o for o in self._sampling for _ in range(samples)],
            stop_tokens=self.model.stop_tokens,
            vocab_size=self.model.vocab_size,
            grammar=self._grammar,
            among=self._among,
            sampled=getattr(self.method.strategy, "sampled", False),
        )
        # The state is donated. The caller's tables must be copied, because its next session reads them too.
        return jax.tree.map(jnp.copy, processors)


def _check_sampled(method: Method, sampling: Sequence[SamplingOptions]) -> None:
    """Refuses rows that sample under a method that adds no noise. A strategy of another kind need not say."""
    if getattr(method.strategy, "sampled", True):
        return
    for row, options in enumerate(sampling):
        if options.sampled:
            raise ValueError(
                f"row {row} has temperature {options.temperature}, but method {method.name} was made for greedy rows: "
                "make it with sampled=True"
            )


def _ints(tokens: Sequence[int] | np.ndarray | jax.Array) -> list[int]:
    return [int(token) for token in np.asarray(tokens)] if hasattr(tokens, "dtype") else list(tokens)


def _entry(token: int, log_prob: Any, values: np.ndarray, tokens: np.ndarray) -> TokenLogProb:
    top = tuple((int(t), float(v)) for t, v in zip(tokens, values, strict=True))
    return TokenLogProb(token=int(token), log_prob=float(log_prob), top=top)
