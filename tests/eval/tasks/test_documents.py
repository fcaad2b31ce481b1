import dataclasses
import json
import math

import pytest

from eval.scores.engine import Engine
from eval.tasks.documents import Document, DocumentSet, document_set, windows
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import ASSETS
from jax_smash.sparse import StreamingLLM, sparsified
from tests.eval.reference import OPENING, small, token_log_probs

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


def test_decoded_token_by_token_the_perplexity_is_the_same(outcome):
    documents = tuple(Document(name=str(i), text=text) for i, text in enumerate(TEXTS))
    (found,) = DocumentSet(task="p", documents=documents, decoded=True).measure(Engine(small(), batch_size=2))
    assert [e["nats"] for e in found.examples] == pytest.approx([e["nats"] for e in outcome.examples], rel=1e-4)


def test_decoded_under_a_policy_it_is_what_the_policy_leaves():
    documents = (Document(name="0", text=TEXTS[0] + TEXTS[2]),)
    model = small()
    scores = []
    for slots in (96, 24):
        engine = Engine(sparsified(model, StreamingLLM(slots)), batch_size=2)
        scores.append(DocumentSet(task="p", documents=documents, decoded=True).measure(engine)[0].score)
    whole = math.exp(-token_log_probs(documents[0].text.encode()).mean())
    assert scores[0] == pytest.approx(whole, rel=1e-4)
    assert abs(math.log(scores[1] / whole)) > 1e-3


def test_the_interval_holds_the_perplexity(outcome):
    assert outcome.interval.low < outcome.score < outcome.interval.high
    singles = [e["score"] for e in outcome.examples]
    assert min(singles) <= outcome.interval.low
    assert outcome.interval.high <= max(singles)


def test_a_document_longer_than_the_context_is_read_in_windows_that_score_each_token_once():
    engine = Engine(small(), context=16)
    tokens = engine.encode_whole("".join(chr(97 + i % 26) for i in range(40)))
    found = list(windows(engine, tokens, stride=7))
    assert [len(piece) for piece, _ in found] == [16, 16, 16, 16, 16]
    assert [new for _, new in found] == [15, 7, 7, 7, 4]
    # The tokenizer puts nothing before a text, so that only the text's first token needs something to stand behind.
    assert [piece[0] == OPENING for piece, _ in found] == [True, False, False, False, False]
    scored = [token for piece, new in found for token in piece[-new:]]
    assert scored == tokens[1:]


def test_windows_of_a_tokenizer_with_a_beginning_all_have_it():
    engine = Engine(dataclasses.replace(small(), tokenizer=load_tokenizer(ASSETS / "tiny")), context=8)
    tokens = engine.encode_whole("The cat sat on the mat and slept. The dog ran to the river.")
    found = list(windows(engine, tokens, stride=7))
    assert all(piece[: len(engine.beginning)] == engine.beginning != [] for piece, _ in found)
    assert [token for piece, new in found for token in piece[-new:]] == tokens[len(engine.beginning) :]


@pytest.mark.parametrize(("stride", "used"), [(None, 8), (5, 5), (15, 15), (16, 15), (999, 15)])
def test_windows_give_the_nats_of_their_own_contexts(stride, used):
    text = "The cat sat on the mat and slept under the bed."
    engine = Engine(small(), context=16)
    documents = (Document(name="0", text=text),)
    (found,) = DocumentSet(task="perplexity", documents=documents, stride=stride).measure(engine)
    assert found.settings == {"context": 16, "stride": used}
    assert found.more["documents_in_windows"] == 1
    assert found.interval is None
    expected, end, data = token_log_probs(text[:15].encode()).sum(), 15, text.encode()
    while end < len(data):
        new = min(used, len(data) - end)
        end += new
        expected += token_log_probs(data[end - 16 : end], opened=False)[-new:].sum()
    assert found.examples[0]["nats"] == pytest.approx(-expected, rel=1e-4)


def test_words_and_bytes_are_those_of_the_original_text():
    documents = tuple(Document(name=t, text=t, original=t.replace(".", " @.@  .")) for t in TEXTS[:2])
    by_token, by_word = DocumentSet(task="t", documents=documents).measure(Engine(small()))
    nats = -sum(token_log_probs(text.encode()).sum() for text in TEXTS[:2])
    assert by_token.score == pytest.approx(math.exp(nats / sum(len(t.encode()) for t in TEXTS[:2])), rel=1e-4)
    # Each of the two full stops became " @.@  .": two words, seven bytes.
    assert (by_word.metric, by_word.more["words"]) == ("word_perplexity", 6 + 3 + 2 * 2)
    assert by_word.score == pytest.approx(math.exp(nats / 13), rel=1e-4)
    assert by_word.interval.low < by_word.score < by_word.interval.high
    assert by_token.more["bytes"] == sum(len(t.encode()) for t in TEXTS[:2]) + 2 * 6
    shifted = [e | {"nats": e["nats"] + 0.5 * e["words"]} for e in by_word.examples]
    assert by_word.compare(shifted, by_word.examples).value == pytest.approx(0.5)


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


def test_a_perplexity_beyond_all_numbers_is_refused_by_name():
    document = Document(name="here", text="ab" * 100, original="one")
    with pytest.raises(ValueError, match=r"here: a perplexity is a number up to 710 nats a word; got 1\d\d\d"):
        DocumentSet(task="t", documents=(document,)).measure(Engine(small()))
