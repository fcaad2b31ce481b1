import json
import re

import pytest

from tests.train.corpus_files import write_lines
from train.data.corpus import (
    HELD_OUT_SPLIT,
    TRAIN_SPLIT,
    Corpus,
    Source,
    load_corpus,
    split_documents,
)


def splits_of(source, corpus, root):
    return {document.text: split for split, document in split_documents(source, corpus, root)}


def test_the_share_that_is_asked_for_is_held_out(tmp_path):
    write_lines(tmp_path / "a.jsonl", *({"text": f"story {i}"} for i in range(2000)))
    source = Source("s", paths=("a.jsonl",))
    splits = list(splits_of(source, Corpus(sources=(source,), held_out=0.1), tmp_path).values())
    assert abs(splits.count(HELD_OUT_SPLIT) / 2000 - 0.1) < 0.03


def test_equal_documents_count_once_and_never_fall_on_both_sides(tmp_path):
    rows = [{"text": f"story {i}"} for i in range(50)]
    write_lines(tmp_path / "a.jsonl", *rows, *rows)
    write_lines(tmp_path / "b.jsonl", *reversed(rows))
    corpus = Corpus(sources=(Source("a", paths=("a.jsonl",)), Source("b", paths=("b.jsonl",))), held_out=0.5)
    one, two = (splits_of(source, corpus, tmp_path) for source in corpus.sources)
    assert one == two
    assert 10 < list(one.values()).count(TRAIN_SPLIT) < 40
    assert len(list(split_documents(corpus.sources[0], corpus, tmp_path))) == 50


def test_of_paths_as_many_documents_are_read_as_count_says(tmp_path):
    write_lines(tmp_path / "a.jsonl", *({"text": f"story {i}"} for i in range(50)))
    source = Source("few", paths=("a.jsonl",), count=7)
    assert list(splits_of(source, Corpus(sources=(source,)), tmp_path)) == [f"story {i}" for i in range(7)]


def test_an_empty_source_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    source = Source("nothing", paths=("a.txt",))
    with pytest.raises(ValueError, match="'nothing' must have a document to train on; got 0"):
        list(split_documents(source, Corpus(sources=(source,)), tmp_path))


def test_a_path_that_names_nothing_is_refused(tmp_path):
    source = Source("lost", paths=("gone/*.jsonl",))
    with pytest.raises(ValueError, match=r"'lost': expected a \.jsonl, \.json or \.txt file at .*gone"):
        list(split_documents(source, Corpus(sources=(source,)), tmp_path))


def test_a_task_source_alternates_its_lengths_and_writes_its_share_of_chats(tmp_path):
    source = Source("recall", task="key_value", count=40, lengths=(30, 60), chats=0.25)
    documents = [d for _, d in split_documents(source, Corpus(sources=(source,)), tmp_path)]
    assert len(documents) == 40
    assert sum(bool(document.messages) for document in documents) == 10
    for document in documents:
        text = document.messages[-1]["content"] if document.messages else document.text
        [answer] = document.answers
        assert answer in text
    sizes = [len(document.text.split()) for document in documents if document.text]
    assert min(sizes) <= 32 < 45 < max(sizes) <= 62


def test_shown_answers_are_answers_where_a_source_says_so(tmp_path):
    source = Source("shown", task="copying", count=20, lengths=(100,), shown=True)
    documents = [d for _, d in split_documents(source, Corpus(sources=(source,)), tmp_path)]
    assert sum(len(document.answers) for document in documents) > 40
    for document in documents:
        end = len(document.text)
        for answer in reversed(document.answers):
            end = document.text.rindex(answer, 0, end)


def test_a_source_of_lessons_holds_texts_of_many_answers(tmp_path):
    source = Source("many", task="coreference", lessons=True, count=20, lengths=(120, 240))
    documents = [d for _, d in split_documents(source, Corpus(sources=(source,)), tmp_path)]
    assert len(documents) == 20
    assert sum(len(document.answers) for document in documents) > 50
    assert all(answer in document.text for document in documents for answer in document.answers)


def test_an_echo_says_shuffled_words_as_often_as_it_is_told(tmp_path):
    words = [f"w{i}" for i in range(100)]
    write_lines(tmp_path / "a.jsonl", {"text": " ".join(words)})
    source = Source("echo", paths=("a.jsonl",), echo=(8, 20, 4))
    said = []
    for _, document in split_documents(source, Corpus(sources=(source,), held_out=0.0), tmp_path):
        first, *others = document.text.split("\n")
        assert others == [first] * 3
        assert document.answers == (first,) * 3
        assert 8 <= len(first.split()) <= 20
        said += first.split()
    assert len(said) > 92
    assert said != sorted(said, key=words.index)
    assert {*said} <= {*words}


def test_a_circle_says_again_what_stands_right_before_it(tmp_path):
    sentences = [f"The fox number {i} saw {i + 1} owls in the tree." for i in range(60)]
    write_lines(tmp_path / "a.jsonl", {"text": " ".join(sentences)})
    source = Source("loops", paths=("a.jsonl",), circles=True)
    documents = [d for _, d in split_documents(source, Corpus(sources=(source,), held_out=0.0), tmp_path)]
    assert len(documents) == 10
    for document in documents:
        before, circle = document.text.removesuffix(document.circle), document.circle
        assert before + circle == document.text
        said = next(circle[:n] for n in range(1, len(circle) + 1) if circle == circle[:n] * (len(circle) // n))
        assert f" {before}".endswith(said)
        assert not document.complete
    assert len({document.circle.count("fox") for document in documents}) > 1


@pytest.mark.parametrize("form", [{"circles": True}, {"echo": (4, 8, 2)}])
def test_what_is_made_from_a_held_out_text_is_held_out(tmp_path, form):
    texts = [" ".join(f"The {i}fox saw {n} {i}owls in the {i}tree." for n in range(9)) for i in range(100)]
    write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    plain, made = Source("plain", paths=("a.jsonl",)), Source("made", paths=("a.jsonl",), **form)
    corpus = Corpus(sources=(plain, made), held_out=0.3)
    # The number in a word tells the text that it comes from.
    split_of = {re.search(r"\d+", text)[0]: split for text, split in splits_of(plain, corpus, tmp_path).items()}
    found = [
        (split, split_of[number])
        for text, split in splits_of(made, corpus, tmp_path).items()
        for number in re.findall(r"(\d+)[a-z]", text)
    ]
    assert all(own == parents for own, parents in found)
    assert {HELD_OUT_SPLIT, TRAIN_SPLIT} == {own for own, _ in found}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a", "task": "state", "circles": True, "count": 1, "lengths": (9,)}, "circles must be of paths"),
        ({"name": "a", "paths": ("a",), "echo": (9, 8, 2)}, "echo must be a least, a most"),
        ({"name": "a"}, "expected either paths or a task"),
        ({"name": "a", "paths": ("a",), "task": "state"}, "expected either paths or a task"),
        ({"name": "a", "paths": ("a",), "share": 0}, "share must be above 0"),
        ({"name": "a", "paths": ("a",), "shown": True}, "shown answers are those of a task's examples"),
        ({"name": "a", "paths": ("a",), "count": -1}, "count must be at least 0; got -1"),
        ({"name": "a", "task": "chess", "count": 1, "lengths": (9,)}, "task must be one of coreference"),
        ({"name": "a", "task": "state"}, "a task needs count > 0"),
        ({"name": "a", "task": "state", "lessons": True, "count": 1, "lengths": (99,)}, "lessons are texts of one of"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Source(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sources": []},
        {"sources": [{"name": "a", "paths": ["a"], "share": 0}]},
        {"sources": [{"name": "a", "paths": ["a"]}], "held_out": 1},
        {"sources": [{"name": "a", "paths": ["a"]}], "lenght": 5},
        {"sources": [{"name": "a", "paths": ["a"]}, {"name": "a", "paths": ["b"]}]},
    ],
)
def test_a_wrong_corpus_file_is_named(tmp_path, fields):
    (tmp_path / "c.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"c\.json is not a corpus file"):
        load_corpus(tmp_path / "c.json")


def test_the_shipped_corpus_files_can_be_read(request):
    files = (request.config.rootpath / "train" / "configs").glob("*.json")
    with_corpus = [path for path in files if "corpus" in json.loads(path.read_text())]
    assert len(with_corpus) >= 4
    assert all(load_corpus(path).sources for path in with_corpus)


def test_the_shipped_corpus_file_holds_out_its_evaluation_text(request):
    corpus = load_corpus(request.config.rootpath / "train" / "configs" / "tiny.json")
    paths = [path for source in corpus.sources for path in source.paths]
    assert {"tinystories/train-*.jsonl", "babi/*_train.txt", "gsm8k/train.jsonl"} <= {*paths}
    assert not [path for path in paths if "test" in path or "valid" in path]
