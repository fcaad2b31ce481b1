"""Plans: the memory and the time that a model takes on devices, by arithmetic from its sizes."""

import dataclasses
import functools
from collections.abc import Iterator

from jax_smash.chips import Chip
from jax_smash.planning import gains
from jax_smash.planning.drafting import OWN
from jax_smash.planning.estimates import Memory, Speed
from jax_smash.planning.gains import Drafted
from jax_smash.planning.question import KINDS, Question
from jax_smash.planning.shares import Shares
from jax_smash.planning.temporaries import decode_bytes, prefill_bytes
from jax_smash.planning.work import Part, Sizes, drafter_reads, drafts, forward, seconds, together
from jax_smash.shapes import chunks
from jax_smash.sparse import Learned, StreamingLLM, sparse_step_bytes

NEARLY = 0.99
"""Share of the most tokens a second that is as good."""

MOST_BATCH = 2**20
"""Rows beyond which nothing is looked for."""


class Plan:
    """What a question's model takes on its devices.

    Attributes:
      question: what the plan is made for.
      chip: what one device has.
      tree: what the method drafts; None for one without a tree.
      shares: what a device holds.
    """

    def __init__(self, question: Question):
        """Makes the plan.

        Args:
          question: what it is for.

        Raises:
          ValueError: the mesh does not divide the model.
        """
        self.question = question
        self.chip: Chip = question.topology.device
        # Before a tree is chosen, any will do: what drafting reads does not depend on its size.
        drafting = gains.drafts_trees(question.method)
        tree = "chain-4" if drafting and question.tree == "auto" else question.tree
        self.shares: Shares = question.shares(tree)
        self._read, self._scorer = _reading(question, self.shares, tree)
        self.tree: Drafted | None = None
        if drafting:
            self.tree = self.best_tree()
            if question.tree == "auto":
                self.shares = question.shares(self.tree.tree)
        elif question.method == gains.LOOKAHEAD:
            self.tree = self.best_tree()

    @property
    def sizes(self) -> Sizes:
        """What work goes by."""
        question, kind = self.question, KINDS[self.question.dtype]
        return Sizes(
            config=question.held,
            mesh=question.shape,
            shares=self.shares,
            itemsize=question.itemsize,
            kind=kind,
            weight_kind="s8" if question.weights == "int8" else kind,
            read=self._read,
            scorer=self._scorer,
            platform=question.platform,
            fast_memory=self.chip.fast_memory,
        )

    def chunk(self, batch: int) -> int:
        """Returns how many entries a row one forward of the prefill reads.

        Args:
          batch: rows.
        """
        return self.question.chunk(batch, self.shares.weights.bytes + self.shares.drafter.held)

    def memory(self, batch: int | None = None) -> Memory:
        """Returns the bytes of one device.

        Args:
          batch: rows; None for the question's.
        """
        batch = self.question.batch if batch is None else batch
        shares, rows = self.shares, -(-batch // self.question.divisor)
        return Memory(
            weights=shares.weights.bytes,
            drafter=shares.drafter.held,
            cache=rows * shares.cache,
            rows=rows * (shares.row - shares.cache),
            shared=shares.shared,
            temporaries=max(self.temporaries(batch).values()),
            held=self.chip.memory,
        )

    def temporaries(self, batch: int) -> dict[str, int]:
        """Returns about how many bytes of temporaries a device needs for a chunk of the prefill, and for a step.

        Args:
          batch: rows.
        """
        sizes, slots = self.sizes, self.question.context
        return {
            "prefill": prefill_bytes(sizes, batch, self.chunk(batch), slots),
            "decode": decode_bytes(sizes, batch, self._nodes, slots),
        }

    def step(
        self,
        batch: int | None = None,
        *,
        nodes: int | None = None,
        levels: int | None = None,
        acceptance: float | None = None,
    ) -> list[Part]:
        """Returns the parts of a decode step.

        Args:
          batch: rows; None for the question's.
          nodes: entries a row, the root included; None for the method's.
          levels: of drafted nodes; None for the method's.
          acceptance: by which HAMburger's groups are as long as they are; None for the question's.
        """
        batch = self.question.batch if batch is None else batch
        method, sizes = self.question.method, self.sizes
        nodes = self._nodes if nodes is None else nodes
        own = method == OWN
        parts = forward(sizes, batch, nodes, self.question.context, logits=nodes, drafting=nodes > 1, sparse=not own)
        if method == "hamburger":
            # A micro-step for each token behind the first, which the base's own head gives. It makes logits too.
            steps = gains.group_tokens(self.question.acceptance if acceptance is None else acceptance) - 1
            return [*parts, *drafts(sizes, batch, nodes=steps, levels=steps)]
        levels = self._levels if levels is None else levels
        return [*parts, *drafts(sizes, batch, nodes=nodes - 1, levels=levels, sparse=own)]

    def plain_step(self, batch: int | None = None) -> list[Part]:
        """Returns the parts of a step of plain decoding that reads the whole cache."""
        batch = self.question.batch if batch is None else batch
        return forward(self._plain_sizes, batch, 1, self.question.context, logits=1)

    def prefill(self, batch: int | None = None) -> list[Part]:
        """Returns the parts of reading a prompt in each row, a chunk at a time, and of its first token."""
        batch = self.question.batch if batch is None else batch
        parts, before = [], 0
        for width in chunks(self.question.tokens, self.chunk(batch)):
            learned = width if self.shares.learns_prompt else 0
            parts += forward(self.sizes, batch, width, before, logits=learned, drafting=True)
            parts += drafter_reads(self.sizes, batch, width)
            before += width
        return together([*parts, *forward_of_head(self.sizes, batch)])

    def speed(self, batch: int | None = None) -> Speed:
        """Returns what decoding takes, with the tree that pays most for the batch where none was named.

        Args:
          batch: rows; None for the question's.
        """
        batch = self.question.batch if batch is None else batch
        memory = self.memory(batch)
        if self.tree is not None:
            tree = self.best_tree(batch=batch)
            return Speed(batch, tree.seconds, tree.tokens, memory, tree.tree)
        tokens = gains.group_tokens(self.question.acceptance) if self.question.method == "hamburger" else 1.0
        return Speed(batch, seconds(self.step(batch), self.chip), tokens, memory)

    def trees(self, acceptance: float | None = None, *, batch: int | None = None) -> list[Drafted]:
        """Returns what each tree is worth that the method may draft; nothing for one that drafts no trees.

        Args:
          acceptance: in place of the question's.
          batch: rows; None for the question's.
        """
        question = self.question
        acceptance = question.acceptance if acceptance is None else acceptance

        def cost(nodes: int, levels: int) -> float:
            return seconds(self.step(batch, nodes=nodes, levels=levels), self.chip)

        if question.method == gains.LOOKAHEAD:
            nodes, ahead = self.shares.nodes, gains.LOOKED_AHEAD
            tokens = gains.group_tokens(acceptance, ahead.ngram)
            return [Drafted(question.tree, nodes, ahead.ngram - 1, tokens, cost(nodes, ahead.ngram - 1))]
        if not gains.drafts_trees(question.method):
            return []
        tiled = question.platform != "cpu"
        return gains.drafted(question.method, question.tree, acceptance, cost, tiled=tiled)

    def best_tree(self, acceptance: float | None = None, *, batch: int | None = None) -> Drafted:
        """Returns the tree that gives most tokens a second, of those that the method may draft.

        Args:
          acceptance: in place of the question's.
          batch: rows; None for the question's.
        """
        return gains.best(self.trees(acceptance, batch=batch))

    def gain(self, acceptance: float | None = None) -> float:
        """Returns how many times more tokens a second the method gives than plain decoding by the whole cache.

        Args:
          acceptance: in place of the question's; where no tree was named, it is the best for this.
        """
        plain = seconds(self.plain_step(), self.chip)
        if self.tree is not None:
            return plain / self.best_tree(acceptance).seconds_a_token
        acceptance = self.question.acceptance if acceptance is None else acceptance
        tokens = gains.group_tokens(acceptance) if self.question.method == "hamburger" else 1.0
        return plain * tokens / seconds(self.step(acceptance=acceptance), self.chip)

    @functools.cached_property
    def most_rows(self) -> int:
        """The largest batch that fits, a multiple of the devices over which rows are divided; 0 where none does."""
        unit = self.question.divisor
        low, high = 0, 1
        while high * unit <= MOST_BATCH and self.memory(high * unit).fits:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.memory(middle * unit).fits else (low, middle)
        return low * unit

    def speeds(self) -> list[Speed]:
        """Returns what decoding takes with batches that double, up to the largest that fits, and with the first beyond.

        The question's own is among them.
        """
        return [self.speed(batch) for batch in sorted({*self._batches(), self.question.batch})]

    def best_batch(self, most_seconds: float | None = None) -> Speed | None:
        """Returns the smallest batch that fits and gives nearly as many tokens a second as any; None where none fits.

        Args:
          most_seconds: that a token may take; None for as long as it takes.
        """
        fitting = [x for x in self.speeds() if x.memory.fits and (most_seconds is None or x.latency <= most_seconds)]
        most = max((x.throughput for x in fitting), default=0.0)
        return next((x for x in fitting if x.throughput >= NEARLY * most), None)

    def _batches(self) -> Iterator[int]:
        batch = self.question.divisor
        while batch < self.most_rows:
            yield batch
            batch *= 2
        if self.most_rows:
            yield self.most_rows
        yield batch if batch > self.most_rows else 2 * batch

    @functools.cached_property
    def _plain_sizes(self) -> Sizes:
        """What plain decoding goes by: its cache is neither shortened by a policy nor has room for drafts."""
        question = self.question
        if question.method == "ar" and question.policy is None:
            return self.sizes
        plain = dataclasses.replace(question, method="ar", tree="auto", draft_model=None, policy=None)
        return dataclasses.replace(self.sizes, shares=plain.shares("auto"), read=1.0, scorer=0)

    @property
    def _nodes(self) -> int:
        return self.shares.nodes if self.tree is None else self.tree.nodes

    @property
    def _levels(self) -> int:
        return 0 if self.tree is None else self.tree.levels


def forward_of_head(sizes: Sizes, batch: int) -> list[Part]:
    """Returns what makes the first token of every row from its prompt's last state."""
    parts = forward(sizes, batch, 1, 0, logits=1)
    return [part for part in parts if part.name == "head"]


def _reading(question: Question, shares: Shares, tree: str) -> tuple[float, int]:
    """Returns the share of the cache that attention reads under the policy, and the bytes a row that it chooses by."""
    policy = question.reads
    if policy is None or isinstance(policy, StreamingLLM):
        return 1.0, 0
    params = question.arguments(tree=tree).params["target"]
    if isinstance(policy, Learned):
        raise ValueError("a policy with a trained predictor cannot be planned; take one without")
    found = sparse_step_bytes(question.held, params, policy, batch=1, slots=question.context)
    share = shares.kv_heads / question.held.held_kv_heads
    return found.cache / found.dense_cache, int(share * found.scorer)
