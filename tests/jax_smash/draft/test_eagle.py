"""What EAGLE-3 proposes is what the plain drafter proposes, however the text was read and whatever was rejected."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.decode.state import running_rows
from jax_smash.draft.trees.tree import chain, tree_from_ranks
from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import MinP, SamplingOptions, Temperature, TopK, TopP, gumbel_noise, process
from jax_smash.serve.session import Session
from tests.drafting import proposed, proposing
from tests.eagle import PlainEagle, random_drafter
from tests.tiny import tiny_model

RANKS = [[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 0, 0], [2, 0, 1]]
TREES = (tree_from_ranks(RANKS), chain(3))
"""Trees that are asked for after each step; the first decodes."""

CHOICES = [
    SamplingOptions(),
    SamplingOptions(temperature=0.8, top_k=6),
    SamplingOptions(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, logit_bias={3: 2.0}),
]
VOCABULARY = 10
"""So few tokens that random drafts are often right."""

SOME = (0, 2, 3, 5, 6, 8, 9)
"""Tokens of a head that has not all."""


@functools.cache
def target():
    return tiny_model(num_layers=2, layer_kinds=("full",) * 2, window=0, vocab_size=VOCABULARY)


processed = jax.jit(process)  # Call by call, its conditionals would be compiled anew.


class Chat:
    """Rows that decode step by step, beside the plain drafter.

    Attributes:
      kept: drafted tokens that were kept, and `rejected`, steps in which some were not.
      differing: proposals that are not the plain drafter's.
      ended: rows that have ended are compared too.
    """

    def __init__(
        self, drafter, *, chunk=16, sampling=None, shift=0, rows=3, limit=14, method="eagle", plain=PlainEagle, **draft
    ):
        self.ended = True
        self.model, self.drafter = target(), drafter
        self.sampling = sampling = sampling or [SamplingOptions()] * rows
        self.sampled = any(o.sampled for o in sampling)
        draft = DraftOptions(**{"tree": "tree.json"} | draft, drafter=drafter)
        self.made = make_method(self.model, method, draft=draft, sampled=self.sampled)
        self.session = Session(
            self.model, self.made, slots=96, max_new_tokens=limit, sampling=sampling, seeds=list(range(rows))
        )
        self.session._chunk = chunk
        self.plain = plain(self.model, drafter, shift)
        self.texts = [[] for _ in sampling]
        self.compared = self.differing = self.kept = self.rejected = 0
        self.levels = self.made.strategy.levels
        self._propose = functools.partial(proposing(self.made.strategy), self.made.params)

    def turn(self, prompts, limits=None):
        """Reads prompts and decodes to the end, and compares what would be drafted after each step."""
        self.session.read(prompts, limits=limits)
        before = [text + list(prompt) for text, prompt in zip(self.texts, prompts, strict=True)]
        said, running = self.session.outputs(), True
        while running:
            # A row that sits out has nothing pending.
            texts = zip(before, said, prompts, strict=True)
            self.compare([text + new if prompt else [] for text, new, prompt in texts])
            running = self.session.run(1)
            now = self.session.outputs()
            grown = [len(new) - len(old) for new, old in zip(now, said, strict=True)]
            self.kept += sum(max(n - 1, 0) for n in grown)
            self.rejected += sum(0 < n <= self.levels for n in grown)
            said = now
        self.texts = [text + new for text, new in zip(before, said, strict=True)]

    def propose(self, topology):
        """Returns what would be drafted now."""
        return self._propose(self.session.state, topology)

    def compare(self, texts):
        """Compares the trees of all rows that have read something, or of those that have not ended alone."""
        counts = np.asarray(running_rows(self.session.state)) | self.ended
        for tree in TREES:
            found = proposed(self.propose(tree))
            for row, text in enumerate(texts):
                if len(text) > 1 and counts[row]:
                    self.compared += 1
                    self.differing += found[row] != self.plain.tree(tree, text, self._chosen(row, len(text)))

    def _chosen(self, row, length):
        """Returns how the row ranks tokens: as plain decoding does, its noise included, or greedily."""
        state, noisy = self.session.state, self.sampling[row].sampled
        if not state.shared.processors:
            return None
        kept = [noisy or not isinstance(p, Temperature | TopK | TopP | MinP) for p in state.shared.processors]
        processors, memory = (
            list(itertools.compress(x, kept)) for x in (state.shared.processors, state.rows.processors)
        )

        def values(logits, path):
            batch = len(self.texts)
            beside = np.full((batch, 1, len(path)), -1, np.int32)
            beside[row, 0] = path
            every = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (batch, 1, len(logits)))
            found = processed(processors, memory, every, jnp.asarray(beside))
            if noisy:
                place = jnp.full((batch, 1), length + len(path), jnp.int32)
                found = found + gumbel_noise(state.rows.key, place, len(logits))
            return np.asarray(found[row, 0], np.float64)

        return values


def prompts_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


@pytest.fixture
def siblings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree.json").write_text(json.dumps(RANKS))


@functools.cache
def drafter(**changes):
    return random_drafter(target(), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_trees_are_the_plain_drafters_in_chunks_of_any_size(chunk, siblings):
    chat = Chat(drafter(), chunk=chunk)
    chat.turn(prompts_of((19, 1, 7)))
    # A turn goes on behind a pending token that was never read. One row ends early, and one sits a turn out.
    chat.turn(prompts_of((3, 11, 2), seed=1), limits=[14, 2, 14])
    chat.turn(prompts_of((1, 4, 0), seed=2), limits=[5] * 3)
    chat.turn(prompts_of((2, 0, 3), seed=3), limits=[5] * 3)
    assert chat.compared > 100
    assert chat.differing == 0
    assert chat.kept > 10
    assert chat.rejected > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"tap_norms": True, "feeds_normed": True},
        {"residual_normed": True, "taps": (0, 1, 2)},
        {"tokens": SOME},
        {"tokens": SOME, "own_rows": False},
        {"max_positions": 16},
    ],
)
def test_trees_of_every_kind_of_drafter_are_the_plain_ones(changes, siblings):
    chat = Chat(drafter(**changes))
    chat.turn(prompts_of((4, 1, 9)))
    assert chat.compared > 30
    assert chat.differing == 0


@pytest.mark.slow
def test_trees_of_rows_that_sample_are_the_plain_ones_with_the_noise_of_the_choice(siblings):
    chat = Chat(drafter(tokens=SOME), sampling=CHOICES)
    chat.turn(prompts_of((4, 1, 9)))
    assert chat.compared > 30
    assert chat.differing == 0
    assert chat.kept > 0


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [None, SOME])
def test_text_is_plain_decodings_and_takes_fewer_forwards(tokens, siblings):
    request = {"sampling": CHOICES, "seed": [1, 2, 3], "max_new_tokens": 24, "slots": 64}
    plain = generate(target(), prompts_of((4, 1, 9)), **request)
    draft = DraftOptions(tree="tree.json", drafter=drafter(tokens=tokens))
    drafted = generate(target(), prompts_of((4, 1, 9)), method="eagle", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


def test_a_feature_beside_another_token_gives_other_trees(siblings):
    """The control."""
    chat = Chat(drafter(), shift=1)
    chat.turn(prompts_of((4, 2, 9)))
    assert chat.differing > 0.5 * chat.compared


def test_nothing_is_drafted_behind_the_positions_that_were_trained(siblings):
    chat = Chat(drafter(max_positions=10))
    chat.turn(prompts_of((4, 5, 6)), limits=[3, 3, 3])
    # The last feature has position 7 in the last row: tokens behind those at 7, 8 and 9 are drafted, none below.
    lengths = chat.session.state.rows.token_length.tolist()
    assert lengths == [7, 8, 9]
    tree = chat.propose(chain(3))
    assert tree.valid.sum(1).tolist() == [4, 4, 4]
    chat.turn(prompts_of((1, 1, 1), seed=1), limits=[2, 2, 2])
    assert chat.session.state.rows.token_length.tolist() == [10, 11, 12]
    assert chat.propose(chain(3)).valid.sum(1).tolist() == [3, 2, 1]
