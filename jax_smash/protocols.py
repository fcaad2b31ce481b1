"""The interfaces between the parts of a decoder. Every protocol of the project is in this file."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Entering, SelectedCache, SelectedLayer, Selection, Step, Write
from jax_smash.pytree import pytree

State = TypeVar("State")
Params = Mapping[str, Any]
"""Parameters of every module that decodes, by role: `target`, `drafter`, …"""


@pytree
class Forward:
    """The result of one forward.

    Attributes:
      hidden: after the final norm.
      taps: tap i is the residual that enters layer i; the last one, tap L, is the residual before the final norm.
      block_kv: what the cache's `commit` writes of the new entries: keys and values of each layer, or what stands in
        their place.
      policy_state: what a sparse policy's predictor made of the residuals, or the cache of what a policy has chosen for
        forwards behind this one; None without either.
    """

    hidden: Float[Array, "B T D"]
    taps: tuple[Float[Array, "B T D"], ...]
    block_kv: Any
    policy_state: Any = None


@runtime_checkable
class Cache(Protocol):
    """A model's cache, as the loop uses it: a pytree whose every leaf is `[B, …]`."""

    slot_length: Int[Array, "B"]

    def commit(self, block_kv: Any, write: Write) -> Any:
        """Returns the cache with some of the entries written that a forward made."""
        ...


@runtime_checkable
class CausalLM(Protocol):
    """A model that can be decoded: bound to its parameters, inside a traced function.

    A model whose `forward` lets each entry see exactly the entries that `block` says, and places them by `position`
    alone, may say so with an attribute `tree_blocks = True`: then draft trees are checked in one forward. A model that
    does not say is taken to read every block in order, each entry behind all before it, as a recurrent model does. It
    decodes all the same, with drafted chains too, but trees that branch are refused: see `honours_trees`.

    A model that finds the likeliest tokens without all logits does so in a method `likeliest`, which
    `sampling.likeliest_tokens` calls.

    A model whose cache limits the entries of one forward says how many it takes in an attribute `longest_block`.

    A model that also attends to `block.earlier` may say so with `continued_blocks = True`: as a draft model it then
    reads each token of a draft once.
    """

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens in the vocabulary."""
        ...

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Returns the input vector of each token."""
        ...

    def forward(
        self,
        inputs: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        cache: Any,
        block: Block,
        policy: Any = None,
    ) -> Forward:
        """Returns hidden states and the keys and values of the new entries. The cache is only read."""
        ...

    def unembed(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns float32 logits for the token after each entry."""
        ...

    def init_cache(self, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache with `slots` slots per row, for commits of at most `block` entries."""
        ...


def honours_trees(model: CausalLM) -> bool:
    """Returns whether a model says that it honours blocks that are trees; False where it says nothing."""
    return bool(getattr(model, "tree_blocks", False))


def continues_blocks(model: CausalLM) -> bool:
    """Returns whether a model says that it attends to what earlier forwards over a block have read."""
    return bool(getattr(model, "continued_blocks", False))


def longest_block(model: CausalLM) -> int | None:
    """Returns the most entries that a model says one forward may read; None where it says nothing."""
    return getattr(model, "longest_block", None)


@runtime_checkable
class ModelDef(Protocol):
    """A model without its parameters: hashable and comparable, so that a strategy may hold it as static."""

    def bind(self, params: Any) -> CausalLM:
        """Returns the model with these parameters."""
        ...


@runtime_checkable
class LogitsProcessor(Protocol[State]):
    """Changes logits in a way that may depend on earlier tokens.

    A processor is a frozen dataclass whose array fields (`[B]`, one setting per row) are traced. Its state has only
    `[B, …]` leaves. `path` holds the tokens that lie between those seen by `state` and the node of these logits, so the
    nodes of a draft tree need no state of their own. One that changes the logits of some rows alone may say which by an
    attribute `active: Bool[B]`; where it changes none, it is skipped.
    """

    def init(self, batch: int, vocab_size: int) -> State:
        """Makes the state of rows that have seen nothing."""
        ...

    def observe_prompt(self, state: State, tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]) -> State:
        """Reads prompt tokens; `valid` is False at padding."""
        ...

    def advance(self, state: State, token: Int[Array, "B"], running: Bool[Array, "B"]) -> State:
        """Reads one emitted token per row; rows that do not run stay unchanged."""
        ...

    def apply(self, state: State, logits: Float[Array, "B M V"], path: Int[Array, "B M P"]) -> Float[Array, "B M V"]:
        """Returns the changed logits of M nodes. `path` is padded with −1, and P is 0 in plain decoding."""
        ...


def used_by(processor: LogitsProcessor) -> Bool[Array, "B"] | None:
    """Returns the rows whose logits a processor changes; None where it does not say."""
    return getattr(processor, "active", None)


@runtime_checkable
class SparsePolicy(Protocol):
    """Says what a model's cache keeps. Frozen and hashable: it is part of the model's definition."""

    @property
    def endless(self) -> bool:
        """Whether texts may be of any length."""
        ...

    @property
    def longest_block(self) -> int | None:
        """The most entries that one forward may read; None for no limit."""
        ...

    def check(self, model: Any) -> None:
        """Refuses a model that it cannot be used with.

        Raises:
          ValueError: the model's cache or positions are not what the policy needs.
        """
        ...

    def init_cache(self, model: Any, batch: int, slots: int, block: int) -> Any:
        """Makes a model's empty cache, as `CausalLM.init_cache` does."""
        ...


@runtime_checkable
class SelectingPolicy(SparsePolicy, Protocol):
    """Chooses at every step the slots that a layer reads, out of a cache that keeps all entries.

    What it keeps of a layer beside keys and values are its channels: a pytree whose every leaf is `[B, …]`.
    """

    @property
    def evicts(self) -> bool:
        """Whether a slot that was not chosen is never read again."""
        ...

    @property
    def records(self) -> bool:
        """Whether forwards note the probabilities on slots."""
        ...

    @property
    def keeps_queries(self) -> bool:
        """Whether forwards note the queries."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether commits are told which slots were chosen."""
        ...

    @property
    def stepwise(self) -> bool:
        """Whether prompts are read as what is decoded is: an entry at a time, each by the slots that are chosen."""
        ...

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Returns the slots that a forward reads.

        Args:
          view: the layer, with its channels.
          query: of the first entry of the forward, rotated.
        """
        ...

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Returns the layer's channels after a step: of rejected entries they know nothing.

        Args:
          view: the layer with the new entries, but the channels of before.
          step: what was committed.
        """
        ...


@runtime_checkable
class PredictingPolicy(SelectingPolicy, Protocol):
    """Chooses slots by a trained predictor, which hears what enters the layers of a forward.

    What it keeps of rows, `own`, has only `[B, …]` leaves. Its predictor is bound to its parameters.
    """

    def memory(self, predictor: Any, cache: SelectedCache, block: int) -> Any:
        """Makes what is kept of rows that have seen nothing, for commits of at most `block` entries."""
        ...

    def entered(self, predictor: Any, cache: SelectedCache, heard: Any, entering: Entering) -> Any:
        """Returns what the predictor has made once a layer is entered; `heard` is None before the first."""
        ...

    def told(self, layer: int, own: Any, heard: Any) -> Any:
        """Returns what a layer's choice follows from: `SelectedLayer.told`."""
        ...

    def recorded(self, predictor: Any, heard: Any, block_kv: Any, cache: SelectedCache) -> Any:
        """Returns what the commit of a forward is told; every leaf is `[B, T, …]`."""
        ...

    def remembered(self, own: Any, record: Any, write: Write, filled: Int[Array, "B"]) -> Any:
        """Returns what is kept after a commit behind `filled` slots: of rejected entries nothing."""
        ...


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a drafter needs of the target.

    Attributes:
      likeliest: so many of the likeliest tokens at each node.
      totals: and the logarithm of the sum over all tokens, which makes their logits probabilities.
      hidden: it reads hidden states; those of steps without drafts are kept for it.
      taps: indices of the taps that it reads, likewise; a model that tells fewer is refused.
      cache: `propose` is shown the target's cache, to read and no more.
    """

    likeliest: int = 0
    totals: bool = False
    hidden: bool = False
    taps: tuple[int, ...] = ()
    cache: bool = False


@runtime_checkable
class Drafter(Protocol):
    """Proposes trees and learns from how the target checks them: pure functions over what it keeps itself.

    A drafter is static in the compiled program, so it is hashable and holds no arrays. What it keeps of rows, `own`,
    has only `[B, …]` leaves; what the rows share is `shared`. It sees nothing else of the state but what it `needs`.
    `draft.context` has what it is told: `Context`, `Seen` and `Outcome`.
    """

    @property
    def needs(self) -> Needs:
        """What it needs of the target."""
        ...

    def init(self, params: Params, batch: int, slots: int, block: int) -> Any:
        """Makes what is kept of rows that have seen nothing.

        Args:
          params: of every module that decodes.
          batch: rows.
          slots: tokens that a row may have.
          block: the most tokens that are read at once.
        """
        ...

    def read(self, params: Params, own: Any, shared: Any, seen: Any) -> tuple[Any, Any]:
        """Learns from a piece of the prompts, after the target has read it."""
        ...

    def propose(self, params: Params, own: Any, shared: Any, context: Any, topology: Any) -> tuple[Any, Any]:
        """Returns a tree with the topology's nodes and levels, rooted at the pending token, and data for `learn`."""
        ...

    def learn(self, params: Params, own: Any, shared: Any, made: Any, outcome: Any) -> tuple[Any, Any]:
        """Learns from what became of a tree.

        Args:
          params: of every module that decodes.
          own, shared: what it has learned.
          made: what `propose` returned beside the tree.
          outcome: what the target said of it.
        """
        ...


@runtime_checkable
class LateLearner(Drafter, Protocol):
    """A drafter that can learn later from steps without drafts. Only for these can trees be sized while decoding."""

    def follow(
        self,
        params: Params,
        own: Any,
        shared: Any,
        seen: Any,
        pending: Int[Array, "B"],
    ) -> tuple[Any, Any]:
        """Learns from tokens that were read without a draft.

        Args:
          params: of every module that decodes.
          own, shared: what it has learned.
          seen: the tokens of each row, none of a row that missed nothing, with the hidden states and taps that it
            `needs`; others have no width.
          pending: the token after the last of them.
        """
        ...


@runtime_checkable
class Strategy(Protocol):
    """A decoding method: everything that one step of the loop does.

    A strategy is static in the compiled program, so it is hashable and holds no arrays.
    """

    @property
    def target(self) -> ModelDef:
        """The model that decodes."""
        ...

    @property
    def block(self) -> int:
        """The most entries that one step commits."""
        ...

    def init(self, params: Params, batch: int, slots: int, block: int) -> dict[str, Any]:
        """Makes what rows that have seen nothing keep beside the target's cache, by role; every leaf is `[B, …]`.

        Args:
          params: of every module that decodes.
          batch: rows.
          slots: of the target's cache, a row.
          block: the most entries that are read at once.
        """
        ...

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Learns from a chunk of the prompt, after the target has read it."""
        ...

    def start(self, params: Params, state: Any) -> Any:
        """Emits the token after the prompt."""
        ...

    def step(self, params: Params, state: Any) -> Any:
        """Emits at least one token for every running row."""
        ...


@runtime_checkable
class InRounds(Strategy, Protocol):
    """A strategy with steps of several kinds, which it makes in loops of its own."""

    def round(self, params: Params, unfinished: Callable[[Any], Any], carry: Any) -> Any:
        """Makes at least one step, and then more at will, as long as `unfinished(carry)` is true.

        Args:
          unfinished: returns whether there is another step to make.
          carry: the state and the number of steps made.
        """
        ...
