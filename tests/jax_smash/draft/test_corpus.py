from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.draft.corpus import LENGTH, Corpus, CorpusIndex, index_corpus
from jax_smash.draft.suffix import HEAVIEST
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions
from tests.drafting import LETTERS, follow_a_chat, plain_tree
from tests.tiny import tiny_model
from tests.tokenizers import byte_tokenizer


class PlainCorpus:
    """The index written out: every place's tokens read backwards, in a sorted list."""

    def __init__(self, token: list[int]):
        self.token = token
        self.order = sorted(range(len(token)), key=self.back)

    def back(self, place: int) -> list[int]:
        return [self.token[i] if i >= 0 else -2 for i in range(place, place - LENGTH, -1)]

    def __call__(self, topology, text: list[int]) -> list[int]:
        """Returns the tokens of the tree that is proposed for a text."""
        ending = [text[-1 - i] if i < len(text) else -1 for i in range(LENGTH)]
        before = sum(self.back(place) < ending for place in self.order)
        found = []
        for i in range(before - Corpus().places // 2, before + Corpus().places // 2):
            place = self.order[min(max(i, 0), len(self.order) - 1)]
            agreeing = 0
            while agreeing < LENGTH and 0 <= ending[agreeing] == self.back(place)[agreeing]:
                agreeing += 1
            after = self.token[place + 1 : place + 1 + topology.levels] + [-1] * topology.levels
            inside = agreeing and 0 <= i < len(self.order)
            found.append((after[: topology.levels], 2 ** min(agreeing, HEAVIEST) if inside else 0))
        return plain_tree(topology, text[-1], found)


def random_texts(seed: int, *lengths: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(chr(97 + c) for c in rng.integers(0, LETTERS, n)) for n in lengths]


def tokens_of(texts: list[str]) -> list[int]:
    return [token for text in texts for token in (*text.encode(), -1)]


@pytest.mark.parametrize("lengths", [(2,), (1, 40, 3), (300, 200, 1, 7)])
def test_places_are_sorted_by_what_stands_before_them(lengths):
    texts = [*random_texts(1, *lengths), "ab" * 30]
    index = index_corpus(texts, byte_tokenizer())
    plain = PlainCorpus(tokens_of(texts))
    assert index.token.tolist() == plain.token
    assert [plain.back(p) for p in index.order.tolist()] == [plain.back(p) for p in plain.order]
    assert sorted(index.order.tolist()) == list(range(len(plain.token)))


def test_the_search_finds_where_an_ending_would_stand():
    texts = random_texts(2, 90, 5)
    index, plain = index_corpus(texts, byte_tokenizer()), PlainCorpus(tokens_of(texts))
    endings = [plain.back(p) for p in range(95)] + [[120] * LENGTH, [-2] * LENGTH, [97] + [-1] * (LENGTH - 1)]
    found = jax.jit(CorpusIndex.insertion)(index, jnp.asarray(endings, jnp.int32))
    assert found.tolist() == [sum(plain.back(p) < ending for p in plain.order) for ending in endings]


def test_the_most_frequent_of_equally_long_matches_comes_first():
    texts = ["one two three.", "one two four.", "zwei two four."]
    plain = PlainCorpus(tokens_of(texts))
    assert bytes(plain(chain(4), list(b"one two "))) == b" four"
    assert bytes(plain(chain(4), list(b"two t"))) == b"three"


@pytest.mark.slow
def test_drafts_are_those_of_a_plain_program_over_two_turns_of_a_chat(tmp_path):
    # What the model writes is seldom of the few letters of a prompt, and must be found too.
    written = "".join(chr(c) for c in np.random.default_rng(4).permutation(range(32, 127)))
    texts = [*random_texts(3, 150, 150), written]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    found, expected = follow_a_chat("lookup", PlainCorpus(tokens_of(texts)), lookup_corpus=tmp_path)
    assert found == expected
    assert any(draft[1] >= 0 for draft in found)


@pytest.mark.slow
def test_a_corpus_that_holds_the_answer_saves_forwards_and_changes_nothing(tmp_path):
    asked = {"max_new_tokens": 24, "regex": "[a-z ]{40}"}
    model, prompt = tiny_model(stop_tokens=(10,)), "to be or not"
    plain = generate(model, prompt, **asked)[0]
    file = tmp_path / "answer.txt"
    file.write_text("Another text.\n" + prompt + plain.text)
    options = DraftOptions(tree="chain-4", lookup_corpus=file)
    drafted = generate(model, prompt, method="lookup", draft=options, **asked)[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.target_forwards <= 6


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: index_corpus(["a", ""], byte_tokenizer()), "two tokens in a row; its 2 texts have none"),
        (lambda: index_corpus(["ab"], None), "the model has none"),
        (lambda: Corpus(places=3), "places must be even and at least 2; got 3"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_missing_corpus_is_named_before_anything_is_decoded():
    options = DraftOptions(lookup_corpus=Path("no such place"))
    with pytest.raises(FileNotFoundError, match="no such place does not exist"):
        generate(tiny_model(), "x", method="lookup", draft=options)
    with pytest.raises(ValueError, match="lookup_corpus does not go with method recycling"):
        generate(tiny_model(), "x", method="recycling", draft=options)
