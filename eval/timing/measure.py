"""One timed run of one batch by one of our methods, as a user gets it."""

import dataclasses
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from eval.scores.smashing import Compression
from jax_smash.decode.draft_report import Drafted, drafted_rows
from jax_smash.decode.groups import smashed_rows
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model
from jax_smash.methods import DraftOptions, make_method
from jax_smash.plan import step_bytes, tree_bytes
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import QUIET_STEPS
from jax_smash.serve.session import Session
from jax_smash.sharding import on_host, put
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import SparseDef, sparse_step_bytes

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one run of one batch took.

    Attributes:
      tokens: new tokens of each row.
      started: of them, those that came with the prompts: a token a row, or a group.
      first_token_s: from the start of prefill to the first token of every row on the host.
      decode_s: from then to the last token of the batch.
      steps: decode forwards of the batch.
      forwards: decode forwards of each row, summed: those it was still running in.
      forwards_by_row: decode forwards of each row; empty where nobody counted them.
    """

    tokens: list[list[int]]
    started: int
    first_token_s: float
    decode_s: float
    steps: int
    forwards: int
    forwards_by_row: Sequence[int] = ()

    @property
    def decoded(self) -> int:
        """Tokens that decoding emitted: all but those that came with the prompts."""
        return sum(map(len, self.tokens)) - self.started


class Contender(Protocol):
    """Something that continues a batch of prompts and can be timed at it.

    Attributes:
      name: of its row.
      is_peer: it is not ours.
    """

    name: str
    is_peer: bool

    def warm_up(self, batches: Sequence[list[list[int]]]) -> None:
        """Compiles, allocates and reads whatever a first run would otherwise be timed with."""
        ...

    def run(self, prompts: list[list[int]]) -> Sample:
        """Continues one batch, greedily."""
        ...

    def facts(self) -> dict[str, Any]:
        """Returns the fields of its row that do not depend on the timing."""
        ...


class Ours:
    """One of our methods. The loop is the user's: the same session, the same steps a call.

    Attributes:
      memory: what the rows of the next batch begin with; None for what the method begins with. After a run it is what
        those rows learned, where what is learned is carried on.
    """

    is_peer = False

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        slots: int,
        max_new_tokens: int,
        batch_size: int,
        weights: str = "plain",
        draft: DraftOptions = DraftOptions(),  # noqa: B008 - frozen
        smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
        carries: bool = False,
        policy: str | None = None,
    ):
        """Makes the strategy; allocates nothing.

        Args:
          name: of the method.
          model: the model. Its stop tokens end a row.
          slots: capacity of the cache a row.
          max_new_tokens: of each row.
          batch_size: rows.
          weights: how the model holds them; named with the method where they are not plain.
          draft: options of drafting.
          smash: options of HAMburger; a group length that all groups have is named with the method.
          carries: what a batch learned is known to the next, as `generate` has it.
          policy: name of the policy of a sparse model's cache; named with the method.
        """
        self.name = name if weights == "plain" else f"{name} {weights}"
        self.name += "" if policy is None else f" {policy}"
        self.name += f", groups of {smash.group_length}" if smash.group_length else ""
        self.model, self.slots = model, slots
        self.max_new_tokens, self.batch_size = max_new_tokens, batch_size
        self.draft, self.smash, self.carries = draft, smash, carries
        self.memory: Any = None
        self.method = make_method(model, name, draft=draft, smash=smash, batch=batch_size, slots=slots)
        self._compile_s = 0.0
        self._peak_mb: float | None = None
        self._program_mb: float | None = None
        self._drafts: list[Drafted] = []
        self._compression = Compression()

    def start_over(self, *, keep_costs: bool = False) -> None:
        """Forgets what the drafter learned; what steps take, too, unless that is to be kept."""
        self.memory = None
        if self.method.follower is not None and not keep_costs:
            self.method = dataclasses.replace(self.method, follower=self.method.follower.anew())

    def warm_up(self, batches: Sequence[list[list[int]]]) -> None:
        """Compiles a prefill for each length that occurs, and the loop."""
        compiled = PROGRAMS.seconds
        for prompts in batches:
            session = self._session()
            session.read(self._filled(prompts), limits=[min(2, self.max_new_tokens)] * self.batch_size)
            session.run(QUIET_STEPS)
        self._compile_s = PROGRAMS.seconds - compiled
        steps = put(jnp.asarray(QUIET_STEPS, jnp.int32), session.mesh)
        program = PROGRAMS.program(decode, self.method.strategy, self.method.params, session.state, steps)
        self._program_mb = program_megabytes(program)
        self._peak_mb = peak_megabytes()

    def run(self, prompts: list[list[int]]) -> Sample:
        """Continues one batch; of fewer prompts than rows, the other rows sit out.

        The session's empty cache is made before the clock starts.

        Raises:
          RuntimeError: a program was compiled while the clock ran.
        """
        session = self._session()
        jax.block_until_ready(session.state)
        compiled = PROGRAMS.compiled
        began = time.perf_counter()
        session.read(self._filled(prompts))
        started = int(on_host(session.state.rows.output_length).sum())
        first = time.perf_counter()
        while session.run(QUIET_STEPS):
            pass
        ended = time.perf_counter()
        if PROGRAMS.compiled != compiled:
            raise RuntimeError(f"{self.name} compiled a program while it was timed: warm-up missed a shape")
        if self.carries:
            self.memory = session.state.shared.memory
        forwards = on_host(session.state.rows.forwards)[: len(prompts)]
        drafts = drafted_rows(session.state, tree=self.draft.tree, source=self.method.source) or []
        self._drafts += drafts[: len(prompts)]
        self._compression.add(zip(map(len, prompts), smashed_rows(session.state) or (), strict=False))
        return Sample(
            tokens=session.outputs()[: len(prompts)],
            started=started,
            first_token_s=first - began,
            decode_s=ended - first,
            steps=int(forwards.max()),
            forwards=int(forwards.sum()),
            forwards_by_row=forwards.tolist(),
        )

    def facts(self) -> dict[str, Any]:
        """Returns compile time, memory and what a step reads."""
        facts: dict[str, Any] = {
            "compile_s": self._compile_s,
            "peak_memory_mb": self._peak_mb,
            "program_memory_mb": self._program_mb,
            "bytes_per_step": self.bytes_per_step(),
        }
        if self.smash.group_length is not None:
            facts["group_length"] = self.smash.group_length
        return self._drafted() | self._compression.figures() | facts

    def _drafted(self) -> dict[str, Any]:
        """Returns tree, nodes and acceptance by depth of all runs; nothing in plain decoding."""
        if not self._drafts:
            return {}
        tried, kept = (np.sum([getattr(d, name) for d in self._drafts], axis=0) for name in ("tried", "kept"))
        return {
            "tree": self.draft.tree,
            "tree_source": self._drafts[-1].source,
            "nodes": self._drafts[-1].nodes,
            "steps_by_nodes": self._drafts[-1].steps,
            "acceptance_by_depth": [k / t if t else None for k, t in zip(kept.tolist(), tried.tolist(), strict=True)],
        }

    def bytes_per_step(self) -> int:
        """Returns what a decode step must read at least, with the cache at its capacity: every slot is read."""
        params = self.model.params["target"]
        if self.model.config is None:
            return tree_bytes(params)
        sizes = {"batch": self.batch_size, "slots": self.slots}
        if isinstance(self.model.definition, SparseDef):
            return sparse_step_bytes(self.model.config, params, self.model.definition.policy, **sizes).total
        return step_bytes(self.model.config, params, **sizes).total

    def _filled(self, prompts: list[list[int]]) -> list[list[int]]:
        return prompts + [[]] * (self.batch_size - len(prompts))

    def _session(self) -> Session:
        return Session(
            self.model,
            self.method,
            slots=self.slots,
            max_new_tokens=self.max_new_tokens,
            sampling=[SamplingOptions()] * self.batch_size,
            seeds=[0] * self.batch_size,
            memory=self.memory,
        )


def peak_megabytes() -> float:
    """Returns the most memory that was in use at once so far, in 10⁶ bytes.

    On a device that tells, its own peak. Elsewhere, the largest resident set of this process, which holds Python and
    its libraries too.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / MEGABYTE
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest * (1 if sys.platform == "darwin" else 1024) / MEGABYTE


def program_megabytes(program: Any) -> float | None:
    """Returns what a compiled program holds at once, in 10⁶ bytes: arguments, results, temporaries."""
    memory = program.memory_analysis()
    if memory is None:
        return None
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return (held - memory.alias_size_in_bytes) / MEGABYTE
