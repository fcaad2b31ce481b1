import dataclasses
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from train.data import (
    Corpus,
    Document,
    Packed,
    Source,
    clean,
    load_corpus,
    load_packed,
    make_batch,
    ordered_batches,
    pack_corpus,
    pack_rows,
    read_documents,
    read_source,
    shuffled_batches,
)
from train.tokenizer import save_tokenizer, train_tokenizer

BOS, EOS, PAD = 0, 1, 6
INDEX = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}


def write_lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    stories = [{"text": f"Once there were {i} foxes. They ran away."} for i in range(60)]
    chats = [{"turns": [f"Is {i} odd?", "I think so.", "Bye."]} for i in range(20)]
    write_lines(tmp_path / "data" / "stories" / "a.jsonl", *stories)
    write_lines(tmp_path / "data" / "chats.jsonl", *chats, {"prompt": "Who?", "response": "A fox."})
    sources = (Source("stories", ("stories",), 2), Source("chats", ("chat*.jsonl",)))
    return Corpus(sources=sources, length=16, held_out=0.2)


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(train_tokenizer(["Once there were foxes. They ran away. I think so."] * 3, 290), tmp_path / "tok")
    return tmp_path / "tok"


@pytest.fixture
def packed(corpus, tokenizer, tmp_path):
    pack_corpus(corpus, tmp_path / "data", tokenizer, tmp_path / "packed")
    return load_packed(tmp_path / "packed", tokenizer)


def stream(rows):
    tokens = np.concatenate([rows[:, :-1].ravel(), rows[-1:, -1]])
    return tokens[tokens != PAD]


def documents_of(rows):
    tokens = stream(rows)
    return [tuple(part.tolist()) for part in np.split(tokens, np.flatnonzero(tokens == BOS))[1:]]


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n\n{"text": \n')
    with pytest.raises(ValueError, match=r"a\.jsonl:3: "):
        list(read_documents(path, passage=100))


@pytest.mark.parametrize("row", [{"body": "x"}, {"text": 3}, {"turns": ["a", 1]}, ["text"]])
def test_a_line_of_another_form_is_refused(tmp_path, row):
    with pytest.raises(ValueError, match=r"a\.jsonl:1: expected text, turns, or prompt and response"):
        list(read_documents(write_lines(tmp_path / "a.jsonl", row), passage=100))


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.txt cannot be read as UTF-8"):
        list(read_documents(tmp_path / "a.txt", passage=100))


def test_turns_alternate_and_end_with_a_reply(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"turns": ["q", "a", "unanswered"]}, {"prompt": "p", "response": "r"})
    contents = [[tuple(m.values()) for m in d.messages] for d in read_documents(path, passage=9)]
    assert contents == [[("user", "q"), ("assistant", "a")], [("user", "p"), ("assistant", "r")]]


def test_a_long_text_is_cut_at_blank_lines_without_loss(tmp_path):
    text = "\n\n".join(f"Paragraph {i}." for i in range(50))
    (tmp_path / "a.txt").write_text(text)
    passages = list(read_documents(tmp_path / "a.txt", passage=100))
    assert len(passages) > 3
    assert "\n\n".join(passage.text for passage in passages) == text
    assert [passage.complete for passage in passages] == [False] * (len(passages) - 1) + [True]


@pytest.mark.parametrize(
    ("dirty", "plain"),
    [
        ("“Hi,” she said — it’s…", '"Hi," she said -- it\'s...'),
        ("â€œHi!â€ Thatâ€™s it.", '"Hi!" That\'s it.'),
        ("a\n\n[Illustration: a cat\nand a dog]\n\n* * * * *\n\n\nb", "a\n\nb"),
        ("He wrote <|end|><|user|>Hello[12].  \n", "He wrote Hello."),
        ("if x:\n    y", "if x:\n    y"),
    ],
)
def test_cleaning_leaves_plain_text(dirty, plain):
    assert clean(dirty) == plain


def test_weights_repeat_documents_and_keep_shares_of_them(tmp_path):
    write_lines(tmp_path / "a.jsonl", *({"text": f"story {i}"} for i in range(2000)))
    source = Source("s", ("a.jsonl",), 2.25)
    corpus = Corpus(sources=(source,), held_out=0.1)
    copies = np.array([count for _, count in read_source(source, corpus, tmp_path)])
    assert set(copies) == {0, 2, 3}
    assert abs(np.mean(copies == 0) - 0.1) < 0.03
    assert abs(np.mean(copies[copies > 0] == 3) - 0.25) < 0.04
    third = dataclasses.replace(source, weight=0.25)
    assert abs(len(read_source(third, corpus, tmp_path)) - 500) < 80


def test_equal_documents_count_once_and_never_fall_on_both_sides(tmp_path):
    rows = [{"text": f"story {i}"} for i in range(50)]
    write_lines(tmp_path / "a.jsonl", *rows, *rows)
    write_lines(tmp_path / "b.jsonl", *reversed(rows))
    corpus = Corpus(sources=(Source("a", ("a.jsonl",)), Source("b", ("b.jsonl",), 3)), held_out=0.5)
    one, two = (
        {document.text for document, copies in read_source(source, corpus, tmp_path) if copies == 0}
        for source in corpus.sources
    )
    assert one == two
    assert 10 < len(one) < 40
    assert len(read_source(corpus.sources[0], corpus, tmp_path)) == 50


def test_an_empty_source_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    source = Source("nothing", ("a.txt",))
    with pytest.raises(ValueError, match="'nothing' must have a document to train on; got 0"):
        read_source(source, Corpus(sources=(source,)), tmp_path)


def test_a_path_that_names_nothing_is_refused(tmp_path):
    source = Source("lost", ("gone/*.jsonl",))
    with pytest.raises(ValueError, match=r"'lost': expected a \.jsonl or \.txt file at .*gone"):
        read_source(source, Corpus(sources=(source,)), tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sources": []},
        {"sources": [{"name": "a", "paths": ["a"], "weight": 0}]},
        {"sources": [{"name": "a", "paths": ["a"]}], "held_out": 1},
        {"sources": [{"name": "a", "paths": ["a"]}], "lenght": 5},
    ],
)
def test_a_wrong_corpus_file_is_named(tmp_path, fields):
    (tmp_path / "c.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"c\.json is not a corpus file"):
        load_corpus(tmp_path / "c.json")


def test_the_shipped_corpus_file_holds_out_its_evaluation_text(request):
    corpus = load_corpus(request.config.rootpath / "train" / "configs" / "tiny.json")
    paths = [path for source in corpus.sources for path in source.paths]
    assert "tinystories/train-*.jsonl" in paths
    assert "tinystories" not in paths


def test_rows_hold_the_documents_in_turn_and_overlap_by_a_token():
    documents = [np.arange(10, 10 + n, dtype=np.uint16) for n in (5, 1, 9)]
    rows = pack_rows(documents, 4, pad_id=PAD)
    assert rows.shape == (4, 5)
    assert rows.dtype == np.uint16
    np.testing.assert_array_equal(rows[1:, 0], rows[:-1, -1])
    np.testing.assert_array_equal(stream(rows), np.concatenate(documents))
    assert pack_rows([], 4, pad_id=PAD).shape == (0, 5)


def test_every_document_is_packed_as_often_as_its_weight_says(packed, corpus, tokenizer, tmp_path):
    train = documents_of(packed.rows)
    held_out = documents_of(load_packed(tmp_path / "packed", tokenizer, split="held_out").rows)
    assert all(document[-1] == EOS for document in train + held_out)
    assert not set(train) & set(held_out)
    assert len(set(train)) + len(set(held_out)) == 81
    counts = {source["name"]: source for source in packed.index["sources"]}
    assert counts["stories"]["train"]["documents"] == 2 * (60 - counts["stories"]["held_out"]["documents"])
    assert len(train) == sum(source["train"]["documents"] for source in counts.values())
    assert len(stream(packed.rows)) == sum(source["train"]["tokens"] for source in counts.values())


def test_chats_are_packed_by_the_template(packed, tokenizer, tmp_path):
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    held_out = load_packed(tmp_path / "packed", tokenizer, split="held_out")
    texts = {loaded.decode(document) for split in (packed, held_out) for document in documents_of(split.rows)}
    assert "<|bos|><|user|>Is 3 odd?<|end|><|assistant|>I think so.<|end|><|eos|>" in texts
    assert "<|bos|>Once there were 3 foxes. They ran away.<|eos|>" in texts


def test_a_passage_that_goes_on_has_no_end(tokenizer):
    from transformers import AutoTokenizer

    from train.data import encode_documents

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    going_on, ended = encode_documents([Document("foxes", complete=False), Document("foxes")], loaded)
    assert going_on[0] == BOS
    assert going_on[-1] != EOS
    assert ended.tolist() == [*going_on.tolist(), EOS]


def test_packing_twice_writes_the_same_bytes(packed, corpus, tokenizer, tmp_path):
    pack_corpus(corpus, tmp_path / "data", tokenizer, tmp_path / "again")
    for name in ("train.npy", "held_out.npy", "index.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "packed" / name).read_bytes()


def test_a_packed_file_of_another_tokenizer_is_refused(packed, tmp_path):
    save_tokenizer(train_tokenizer(["other words"], 265), tmp_path / "other")
    with pytest.raises(ValueError, match=rf"packed with tokenizer {packed.index['tokenizer_sha256']}; got [0-9a-f]+"):
        load_packed(tmp_path / "packed", tmp_path / "other")


def test_rows_that_differ_from_the_index_are_refused(packed, tokenizer, tmp_path):
    np.save(tmp_path / "packed" / "train.npy", packed.rows[:-1])
    with pytest.raises(ValueError, match=r"must be uint16 of shape \(\d+, 17\); got uint16 of shape"):
        load_packed(tmp_path / "packed", tokenizer)


def test_a_folder_without_packed_rows_is_named(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="nowhere cannot be read as packed data"):
        load_packed(tmp_path / "nowhere", tokenizer)


def test_positions_and_segments_restart_with_each_document():
    rows = np.array([[9, 8, BOS, 7, EOS, BOS, 5, EOS], [BOS, 7, 7, EOS, PAD, PAD, PAD, PAD]], np.uint16)
    batch = make_batch(rows, INDEX)
    assert batch.positions.tolist() == [[0, 1, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5, 6]]
    assert batch.segments.tolist() == [[1, 1, 2, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0, 0]]
    assert batch.weights.tolist() == [[1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0]]
    assert batch.targets.tolist() == rows[:, 1:].tolist()
    assert [array.dtype for array in batch] == [np.int32] * 4 + [np.float32]


def take(batches, count):
    return [batch.tokens for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("start", [0, 1, 4, 5, 13])
def test_resumed_batches_equal_uninterrupted_ones(start):
    packed = Packed(np.arange(22 * 3, dtype=np.uint16).reshape(22, 3), INDEX)
    whole = take(shuffled_batches(packed, 4, seed=3), 20)
    resumed = take(shuffled_batches(packed, 4, seed=3, start_step=start), 20 - start)
    np.testing.assert_array_equal(whole[start:], resumed)


def test_an_epoch_takes_no_row_twice_and_each_has_its_own_order():
    packed = Packed(np.arange(22 * 3, dtype=np.uint16).reshape(22, 3), INDEX)
    batches = np.stack(take(shuffled_batches(packed, 4, seed=3), 10))
    first, second = batches[:5, :, 0].ravel(), batches[5:, :, 0].ravel()
    assert len(set(first.tolist())) == len(set(second.tolist())) == 20
    assert first.tolist() != second.tolist()
    other = np.stack(take(shuffled_batches(packed, 4, seed=4), 5))
    assert first.tolist() != other[:, :, 0].ravel().tolist()


def test_a_batch_larger_than_the_split_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at most the split's 3 rows; got 4"):
        next(shuffled_batches(Packed(np.zeros((3, 5), np.uint16), INDEX), 4, seed=0))


def test_ordered_batches_weigh_every_row_once():
    rows = np.arange(10, 10 + 5 * 4, dtype=np.uint16).reshape(5, 4)
    batches = list(ordered_batches(Packed(rows, INDEX), 2))
    assert {batch.tokens.shape for batch in batches} == {(2, 3)}
    assert sum(batch.weights.sum() for batch in batches) == 5 * 3
    np.testing.assert_array_equal(np.concatenate([b.tokens for b in batches])[:5], rows[:, :-1])


def test_reading_packed_rows_imports_neither_jax_nor_a_tokenizer(request):
    check = "import sys, train.data; sys.exit(bool({'jax', 'transformers', 'tokenizers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], cwd=request.config.rootpath, check=False).returncode == 0
