import numpy as np
import pytest

from jax_smash.checkpoints.tokenizer import load_tokenizer
from tests.train.corpus_files import make_packed, write_lines
from train.data.corpus import Corpus, Source
from train.data.rows import Packed
from train.pack import pack_corpus
from train.parts.drafter.rows import ReplyRows, commonest, random_batch, replies_of
from train.tokenizer import END


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of packed stories and chats, and their tokenizer."""
    packed, tokenizer = make_packed(tmp_path_factory.mktemp("rows"))
    replies = replies_of(tokenizer, "<|assistant|>", END)
    return ReplyRows(Packed(packed, tokenizer), replies, 32, 4), load_tokenizer(tokenizer)


def texts(batch, tokenizer):
    """Returns the text of the targets that count, a document at a time."""
    found = []
    for row in range(len(batch.tokens)):
        for segment in range(1, batch.segments[row].max() + 1):
            counted = (batch.segments[row] == segment) & (batch.weights[row] > 0)
            found.append(tokenizer.decode(batch.targets[row][counted]))
    return found


def test_of_chats_only_replies_count_and_of_texts_everything(rows):
    made, tokenizer = rows
    held_out = made.held_out()
    chats = {text for batch in held_out["chats"] for text in texts(batch, tokenizer)}
    assert chats <= {"I think so.<|end|>", "A fox.<|end|>"}
    assert chats
    stories = [text for batch in held_out["stories"] for text in texts(batch, tokenizer)]
    assert all(text.startswith("Once there were ") and "They ran away." in text for text in stories)


def test_replies_that_never_end_are_refused_where_chats_go_on(rows, tmp_path):
    made, _ = rows
    made.check_replies("<|assistant|>", END)
    tokenizer = made.packed.folder.parent / "tokenizer"
    chats = [[{"role": r, "content": f"foxes {i}"} for r in ("user", "assistant") * 2] for i in range(40)]
    write_lines(tmp_path / "a.jsonl", *({"messages": chat} for chat in chats))
    pack_corpus(Corpus(sources=(Source("a", paths=("a.jsonl",)),)), tmp_path, tokenizer, tmp_path / "packed")
    packed = Packed(tmp_path / "packed", tokenizer)
    ReplyRows(packed, replies_of(tokenizer, "<|assistant|>", END), 32, 4).check_replies("<|assistant|>", END)
    other = ReplyRows(packed, replies_of(tokenizer, "<|assistant|>", "<|eot|>"), 32, 4)
    with pytest.raises(ValueError, match=r"must hold '<\|eot\|>' behind replies, .* set reply_ends"):
        other.check_replies("<|assistant|>", "<|eot|>")


def test_a_token_that_is_not_in_a_reply_is_not_counted(rows):
    made, tokenizer = rows
    counts = made.counts(290)
    one = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<|end|>", "<|user|>", "<|bos|>")}
    assert counts[one["<|end|>"]] > 10
    assert counts[one["<|user|>"]] == counts[one["<|bos|>"]] == 0
    assert one["<|end|>"] in commonest(counts, 20)


def test_the_commonest_tokens_are_in_rising_order_the_first_of_equal_ones_first():
    counts = np.array([0, 5, 2, 2, 9])
    assert commonest(counts, 3).tolist() == [1, 2, 4]
    assert commonest(counts, 5).tolist() == [0, 1, 2, 3, 4]


def test_batches_go_on_where_they_stood(rows):
    batches = rows[0].training(seed=3)
    next(batches)
    state = batches.get_state()
    after = next(batches)
    again = rows[0].training(seed=3)
    again.set_state(state)
    for x, y in zip(after, next(again), strict=True):
        np.testing.assert_array_equal(x, y)
    assert batches.tokens > 64


def test_a_random_batch_has_one_text_a_row():
    batch = random_batch(50, 3, 8)
    assert batch.tokens.shape == (3, 8)
    np.testing.assert_array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.weights.sum() == 24


def test_all_answers_to_one_prompt_choose_a_step_or_none_does(rows, tmp_path):
    tokenizer = rows[0].packed.folder.parent / "tokenizer"
    asked = [({"role": "user", "content": f"foxes {i}"}, str(i)) for i in range(12)]
    chats = [[turn, {"role": "assistant", "content": f"{i} {n}"}] for turn, i in asked for n in range(4)]
    write_lines(tmp_path / "a.jsonl", *({"messages": chat} for chat in chats))
    source = Source("a", paths=("a.jsonl",))
    pack_corpus(Corpus(sources=(source,), held_out=0.9), tmp_path, tokenizer, tmp_path / "packed")
    packed, replies = Packed(tmp_path / "packed", tokenizer), replies_of(tokenizer, "<|assistant|>", END)
    made = ReplyRows(packed, replies, 32, 4, choice_share=0.5)
    told = load_tokenizer(tokenizer)
    choosing, reported = (
        {text.split()[0] for batch in found["a"] for text in texts(batch, told)}
        for found in (made.choice(), made.held_out())
    )
    assert choosing
    assert reported
    assert not choosing & reported
