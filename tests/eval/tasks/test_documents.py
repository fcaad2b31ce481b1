import json
import math

import pytest

from eval.engine import Engine
from eval.tasks.documents import Document, DocumentSet, document_set, windows
from tests.eval.reference import BEGINNING, small, token_log_probs

TEXTS = ("The cat sat on the mat.", "Über die Brücke.", "ab" * 30)


@pytest.fixture(scope="module")
def outcome():
    documents = tuple(Document(name=str(i), text=text) for i, text in enumerate(TEXTS))
    (found,) = DocumentSet(task="perplexity", documents=documents).measure(Engine(small(), batch_size=2))
    return found


def test_perplexity_is_over_all_tokens_of_all_documents(outcome):
    nats = [-token_log_probs(text.encode()).sum() for text in TEXTS]
    sizes = [len(text.encode()) for text in TEXTS]
    assert outcome.score == pytest.approx(math.exp(sum(nats) / sum(sizes)), rel=1e-4)
    assert outcome.n == 3
    # A byte is a token here.
    assert outcome.more["tokens"] == outcome.more["bytes"] == sum(sizes)
    assert outcome.more["nats_per_token"] == pytest.approx(sum(nats) / sum(sizes), rel=1e-4)
    assert outcome.more["bits_per_byte"] == pytest.approx(sum(nats) / sum(sizes) / math.log(2), rel=1e-4)
    assert [e["nats"] for e in outcome.examples] == pytest.approx(nats, rel=1e-4)


def test_the_interval_holds_the_perplexity(outcome):
    assert outcome.interval.low < outcome.score < outcome.interval.high
    singles = [e["score"] for e in outcome.examples]
    assert min(singles) <= outcome.interval.low
    assert outcome.interval.high <= max(singles)


def test_a_document_longer_than_the_context_is_read_in_windows_that_score_each_token_once():
    engine = Engine(small(), context=16)
    tokens = engine.encode("".join(chr(97 + i % 26) for i in range(40)))
    found = list(windows(engine, tokens, stride=7))
    assert [len(piece) for piece, _ in found] == [16, 16, 16, 16, 16]
    assert [new for _, new in found] == [15, 7, 7, 7, 4]
    assert all(piece[0] == BEGINNING for piece, _ in found)
    scored = [token for piece, new in found for token in piece[-new:]]
    assert scored == tokens[1:]


def test_windows_give_the_nats_of_their_own_contexts():
    text = "The cat sat on the mat and slept."
    engine = Engine(small(), context=16)
    documents = (Document(name="0", text=text),)
    (found,) = DocumentSet(task="perplexity", documents=documents).measure(engine)
    assert found.settings["stride"] == 7
    assert found.more["documents_in_windows"] == 1
    assert found.interval is None
    expected, end, data = token_log_probs(text[:15].encode()).sum(), 15, text.encode()
    while end < len(data):
        new = min(7, len(data) - end)
        end += new
        expected += token_log_probs(data[end - 15 : end])[-new:].sum()
    assert found.examples[0]["nats"] == pytest.approx(-expected, rel=1e-4)


def test_documents_come_from_lines_or_from_text_files(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    assert [d.text for d in document_set(str(lines), count=2).documents] == list(TEXTS[:2])
    for name, text in zip("bca", TEXTS, strict=True):
        (tmp_path / f"{name}.txt").write_text(text)
    assert [d.text for d in document_set(str(tmp_path), count=None).documents] == [TEXTS[2], TEXTS[0], TEXTS[1]]
    assert [d.text for d in document_set(str(tmp_path / "b.txt"), count=None).documents] == [TEXTS[0]]


def test_bad_documents_are_named(tmp_path):
    lines, bytes_ = tmp_path / "a.jsonl", tmp_path / "b.txt"
    lines.write_text('{"text": "good"}\n{"text": "  "}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: expected a text; got '  '"):
        document_set(str(lines), count=None)
    bytes_.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"b\.txt: not UTF-8: byte 0xff at 2"):
        document_set(str(bytes_), count=None)
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        document_set(str(tmp_path / "missing.txt"), count=None)


def test_a_text_without_a_token_to_score_is_refused():
    document = Document(name="here", text="")
    with pytest.raises(ValueError, match="here: expected a text of several tokens"):
        DocumentSet(task="perplexity", documents=(document,)).measure(Engine(small()))
