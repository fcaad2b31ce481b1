import json

import pytest

from tests.train.corpus_files import write_lines
from train.corpus import (
    HELD_OUT_SPLIT,
    TRAIN_SPLIT,
    Corpus,
    Source,
    clean,
    load_corpus,
    read_documents,
    split_documents,
)


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n\n{"text": \n')
    with pytest.raises(ValueError, match=r"a\.jsonl:3: "):
        list(read_documents(path, passage=100))


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.txt cannot be read as UTF-8"):
        list(read_documents(tmp_path / "a.txt", passage=100))


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
        ("48/2 = <<48/2=24>>24 clips", "48/2 = 24 clips"),
        ("if x:\n    y", "if x:\n    y"),
    ],
)
def test_cleaning_leaves_plain_text(dirty, plain):
    assert clean(dirty) == plain


@pytest.mark.parametrize(
    "row", [{"body": "x"}, {"text": 3}, {"turns": ["a", 1]}, {"messages": [{"role": "user"}]}, ["text"]]
)
def test_a_line_of_another_form_is_refused(tmp_path, row):
    with pytest.raises(ValueError, match=r"a\.jsonl:1: expected text, messages, turns, prompt and response"):
        list(read_documents(write_lines(tmp_path / "a.jsonl", row), passage=100))


def test_a_role_that_no_template_has_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "tool", "content": "x"}]})
    with pytest.raises(ValueError, match=r"a\.jsonl:1: role must be system, user or assistant; got 'tool'"):
        list(read_documents(path, passage=100))


def test_every_form_of_a_chat_is_read_up_to_its_last_reply(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {"turns": ["q", "a", "unanswered"]},
        {"prompt": "p", "response": "r"},
        {"question": "how many?", "answer": "3"},
        {"instruction": "spell", "input": "cat", "output": "c a t"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "v"}, {"role": "user", "content": "w"}]},
        {"turns": ["nobody answers"]},
    )  # fmt: skip
    contents = [[tuple(m.values()) for m in d.messages] for d in read_documents(path, passage=9)]
    assert contents == [
        [("user", "q"), ("assistant", "a")],
        [("user", "p"), ("assistant", "r")],
        [("user", "how many?"), ("assistant", "3")],
        [("user", "spell\ncat"), ("assistant", "c a t")],
        [("system", "s"), ("user", "u"), ("assistant", "v")],
    ]


def test_a_json_list_is_read_like_lines(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
    assert [d.text for d in read_documents(tmp_path / "a.json", passage=100)] == ["one", "two"]
    (tmp_path / "b.json").write_text('{"text": "one"}')
    with pytest.raises(ValueError, match=r"b\.json must hold a list; got dict"):
        list(read_documents(tmp_path / "b.json", passage=100))


def test_numbered_stories_with_questions_are_documents_of_their_own(tmp_path):
    lines = ["1 Ann went to the hall.", "2 Where is Ann? \thall\t1", "1 Bob left.", "2 Who left? \tBob\t1"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    texts = [document.text for document in read_documents(tmp_path / "a.txt", passage=1000)]
    assert texts == ["Ann went to the hall.\nWhere is Ann? hall", "Bob left.\nWho left? Bob"]


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
        assert document.answer
        assert document.answer in text
    sizes = [len(document.text.split()) for document in documents if document.text]
    assert min(sizes) <= 32 < 45 < max(sizes) <= 62


def test_an_echo_says_shuffled_words_as_often_as_it_is_told(tmp_path):
    words = [f"w{i}" for i in range(100)]
    write_lines(tmp_path / "a.jsonl", {"text": " ".join(words)})
    source = Source("echo", paths=("a.jsonl",), echo=(8, 20, 4))
    said = []
    for _, document in split_documents(source, Corpus(sources=(source,), held_out=0.0), tmp_path):
        first, *others = document.text.split("\n")
        assert others == [first] * 3
        assert 8 <= len(first.split()) <= 20
        said += first.split()
    assert len(said) > 92
    assert said != sorted(said, key=words.index)
    assert {*said} <= {*words}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a", "paths": ("a",), "echo": (9, 8, 2)}, "echo must be a least, a most"),
        ({"name": "a"}, "expected either paths or a task"),
        ({"name": "a", "paths": ("a",), "task": "state"}, "expected either paths or a task"),
        ({"name": "a", "paths": ("a",), "share": 0}, "share must be above 0"),
        ({"name": "a", "task": "chess", "count": 1, "lengths": (9,)}, "task must be one of coreference"),
        ({"name": "a", "task": "state"}, "a task needs count > 0"),
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


def test_the_shipped_corpus_file_holds_out_its_evaluation_text(request):
    corpus = load_corpus(request.config.rootpath / "train" / "configs" / "tiny.json")
    paths = [path for source in corpus.sources for path in source.paths]
    assert {"tinystories/train-*.jsonl", "babi/*_train.txt", "gsm8k/train.jsonl"} <= {*paths}
    assert not [path for path in paths if "test" in path or "valid" in path]
