import itertools
import json

import numpy as np
import pytest

from eval.drafting import held_out
from eval.drafting.held_out import Replies, Text, answered_texts, chosen, packed_texts
from tests.tiny import tiny_model
from train.data import replies as of_training
from train.parts.drafter import rows as rows_of_training

FORMS = {"reply": ((1, 2), (3,)), "no end": ((1, 2), ()), "no chat": ((), ())}


def packed(folder, documents, *, split="held_out"):
    """Writes a packed folder of one source of some documents, each tokens and marks."""
    tokens, marks = (np.concatenate([document[i] for document in documents]) for i in (0, 1))
    np.save(folder / "a.tokens.npy", tokens.astype(np.uint16))
    np.save(folder / "a.marks.npy", marks.astype(np.int8))
    np.save(folder / "a.documents.npy", np.cumsum([len(document[0]) for document in documents]))
    empty = {"shards": []}
    sources = [{"train": empty, "held_out": empty} | {split: {"shards": ["a"]}}]
    (folder / "index.json").write_text(json.dumps({"sources": sources, "tokenizer_sha256": ""}))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_what_is_said_is_what_training_learns(form):
    begins, ends = FORMS[form]
    rng = np.random.default_rng(0)
    mine, theirs = Replies(begins, ends), of_training.Replies(begins, ends, prompt_share=0.0)
    shares = set()
    for n in (1, 2, 5, 30, 30, 30):
        tokens, marks = rng.integers(1, 4, n).astype(np.uint16), (rng.random(n) < 0.1).astype(np.int8)
        said = mine.said(tokens, marks)
        np.testing.assert_array_equal(said, theirs.marks(tokens, marks == 1, (0,)))
        shares.add(said.sum())
    assert len(shares) > 2


def test_documents_that_chose_a_step_are_left_out(tmp_path):
    rng = np.random.default_rng(1)
    documents = [(rng.integers(0, 99, 6).astype(np.uint16), np.zeros(6)) for _ in range(40)]
    texts = list(packed_texts(packed(tmp_path, documents), Replies(), choice_share=0.5))
    left = [d.tolist() for d, _ in documents if not rows_of_training.chooses(d, 0.5)]
    assert [text.tokens for text in texts] == left
    assert 5 < len(left) < 35
    assert len(list(packed_texts(tmp_path, Replies(), choice_share=0.0))) == 40


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        ((7, 8), (3,), r"must hold the text of reply_begins before a reply; no held-out document has it"),
        ((1, 2), (7, 8), r"must hold the text of reply_ends behind a reply; no held-out document has it"),
    ],
)
def test_marks_of_replies_that_no_document_has_are_refused(tmp_path, begins, ends, said):
    documents = [(np.array(tokens, np.uint16), np.zeros(4)) for tokens in ([5, 5, 5, 5], [1, 2, 4, 3])]
    packed(tmp_path, documents)
    assert [sum(t.said) for t in packed_texts(tmp_path, Replies((1, 2), (3,)), choice_share=0.0)] == [3, 2]
    with pytest.raises(ValueError, match=said):
        next(packed_texts(tmp_path, Replies(begins, ends), choice_share=0.0))


def test_a_damaged_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"must be a folder that train\.pack wrote"):
        list(packed_texts(tmp_path, Replies(), choice_share=0.0))
    packed(tmp_path, [([1, 2, 3], np.zeros(3))])
    (tmp_path / "a.marks.npy").write_text("no array")
    with pytest.raises(ValueError, match="must hold the shard a whole"):
        list(packed_texts(tmp_path, Replies(), choice_share=0.0))


def test_of_an_answer_the_reply_is_said_and_of_a_text_everything(tmp_path, monkeypatch):
    model, file = tiny_model(), tmp_path / "answers.jsonl"
    chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cde"}]
    lines = [{"messages": chat, "token_ids": [7, 8, 9]}, {"messages": chat}, {"text": "xyz"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(type(model), "encode_chat", lambda self, messages: self.encode(messages[-1]["content"]))
    kept, encoded, text = answered_texts(file, model)
    prompt, reply = model.encode("ab"), model.tokenizer.encode("cde", add_special_tokens=False)
    assert (kept.tokens, encoded.tokens) == ([*prompt, 7, 8, 9], [*prompt, *reply])
    assert kept.said == [False] * len(prompt) + [True] * 3
    assert (text.tokens, sum(text.said)) == (model.encode("xyz"), len(model.encode("xyz")) - 1)
    file.write_text('{"prompt": "who?"}\n')
    with pytest.raises(ValueError, match="line 1 must be an answer with messages, or a text"):
        list(answered_texts(file, model))


def test_texts_are_taken_until_their_replies_have_enough_tokens():
    texts = [Text(list(range(n)), [False] + [True] * (n - 1)) for n in (2, 9, 50, 9)]
    found, _ = chosen(iter(texts), most_tokens=10, length=12)
    assert [len(text.tokens) for text in found] == [9, 12]
    with pytest.raises(ValueError, match="there must be a held-out text with a reply of more than two tokens"):
        chosen(iter(texts[:1]), most_tokens=10, length=12)


def test_texts_whose_replies_go_in_circles_are_left_out_and_counted_where_they_are_not_to_be_kept():
    def reply(*tokens):
        return Text([1, 1, 1, 1, 1, 1, *tokens], [False] * 6 + [True] * len(tokens))

    turns, short, varied = reply(*[7, 8] * 5), reply(7, 7, 7), reply(*range(2, 12))
    late = reply(*range(2, 8), *[7] * 20)  # In what is cut off.
    texts = [turns, short, turns, varied, late, turns]
    asked = {"most_tokens": 19, "length": 12}
    found, left_out = chosen(iter(texts), **asked, circles=False)
    assert (found, left_out) == (
        [
            text.cut(12)
            for text in (
                short,
                varied,
                late,
            )
        ],
        3,
    )
    assert chosen(iter(texts), **asked)[1] == 0
    with pytest.raises(ValueError, match="of more than two tokens; got none but 2 that go in circles"):
        chosen(iter([turns, turns]), **asked, circles=False)


def test_sources_are_read_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "_documents", lambda folder, shards: ((np.array([n]), np.zeros(1)) for n in shards))
    index = {"tokenizer_sha256": "", "sources": [{"held_out": {"shards": [1, 2, 3]}}, {"held_out": {"shards": [7]}}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    texts = packed_texts(tmp_path, Replies(), choice_share=0.0)
    assert list(itertools.chain.from_iterable(text.tokens for text in texts)) == [1, 7, 2, 3]
