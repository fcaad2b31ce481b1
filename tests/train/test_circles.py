import json

import pytest
from transformers import AutoTokenizer

from tests.train.corpus_files import make_tokenizer, write_lines
from train.circles import LONGEST, circle_of, main, openings
from train.documents import Document, read_documents
from train.export import export
from train.pack import CIRCLE, QUOTED, encode
from train.settings import load_settings
from train.start import first_params

FIELDS = {
    "model": {
        "family": "llama", "vocab_size": 300, "num_layers": 1, "d_model": 32, "num_heads": 2, "num_kv_heads": 1,
        "head_width": 16, "mlp_width": 32, "max_positions": 256, "tied_head": True, "bos_token": 0,
    },
    "batch_size": 1, "length": 8, "steps": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "circle"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], None),
        ([1, 2, 3, 4, 1, 2, 3, 4], None),  # Said twice, and no more.
        ([9, 1, 2, 3, 4] + [1, 2, 3, 4] * 2, (8, 13)),
        ([5] * 8, (4, 8)),
        ([1, 2, 3, 4, 1, 2, 3, 4, *range(10, 40)], None),
        ([], None),
    ],
)
def test_a_circle_begins_where_the_first_run_is_said_again(tokens, circle):
    assert circle_of(tokens) == circle


def test_of_a_long_circle_the_beginning_is_kept():
    begin, end = circle_of([1, 2, 3] * 100)
    assert (begin, end) == (6, 6 + LONGEST)


def test_openings_are_beginnings_of_texts_and_first_turns():
    turns = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"})
    documents = [Document(" ".join(f"w{i}" for i in range(200))), Document(messages=turns)]
    begun = openings(documents, 5, seed=1)
    assert len(begun) == 2
    for document in begun:
        if document.messages:
            assert document.messages == turns[:1]
        else:
            assert documents[0].text.startswith(document.text + " ")
            assert 4 <= len(document.text.split()) <= 40
    assert begun == openings(documents, 5, seed=1)


@pytest.fixture
def stutterer(tmp_path):
    """The folder of a model that says its last token again and again: its layers add nothing yet."""
    config = load_settings(write_lines(tmp_path / "config.json", FIELDS)).model
    _, params = first_params(config, seed=0)
    export(tmp_path / "model", config, params, make_tokenizer(tmp_path / "tokenizer"))
    return tmp_path / "model"


def test_a_models_own_circles_are_written_read_and_marked(stutterer, tmp_path, capsys):
    write_lines(
        tmp_path / "a.jsonl", *({"text": f"The {i} foxes ran to the {i} old houses, and there"} for i in range(12))
    )
    write_lines(tmp_path / "b.jsonl", *({"turns": [f"Where is platform {i}?", "There."]} for i in range(12)))
    output = tmp_path / "circles.jsonl"
    main(stutterer, tmp_path, ("a.jsonl", "b.jsonl"), output, max_new_tokens=60, batch=16)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert f"{len(rows)} of 24 texts went in circles" in capsys.readouterr().out
    assert {*map(frozenset, rows)} == {frozenset({"text", "circle"}), frozenset({"messages", "circle"})}
    documents = list(read_documents(output, passage=10))
    tokenizer = AutoTokenizer.from_pretrained(stutterer)
    for row, document, encoded in zip(rows, documents, encode(documents, tokenizer), strict=True):
        said = row["messages"][-1]["content"] if "messages" in row else row["text"]
        assert said.endswith(row["circle"])
        assert document.quoted
        assert {*encoded.marks.tolist()} == {CIRCLE, QUOTED}
        assert row["circle"].strip() in tokenizer.decode(encoded.tokens[encoded.marks == CIRCLE])


def test_a_file_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "out.jsonl").write_text("kept")
    with pytest.raises(FileExistsError, match=r"out\.jsonl exists"):
        main(tmp_path, tmp_path, ("a",), tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "kept"
