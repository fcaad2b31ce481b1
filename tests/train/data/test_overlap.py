"""Prompts that an evaluation asks too are found by thirteen words in a row."""

import json

import pytest

from tests.train.corpus_files import write_lines
from train.data.overlap import WORDS, Avoided, grams, kept_prompts, read_avoided

QUESTION = "Tell me, please: how many of the nine old foxes ran away from the 3 hounds that night?"
SAID = QUESTION.split()


def test_grams_are_of_words_whatever_their_case_and_what_stands_between_them():
    assert len(list(grams(QUESTION))) == len(SAID) - WORDS + 1
    assert list(grams("Who, then?")) == list(grams("WHO then")) == [("who", "then")]
    assert list(grams(" ?! ")) == []


@pytest.mark.parametrize(
    ("prompt", "meets"),
    [
        (" ".join(SAID[2:15]), True),
        (" ".join(SAID[2:14]), False),
        ("So. " + " -- ".join(SAID[3:16]).upper() + " Say it!", True),
        (" ".join([*SAID[:12], "twelve", *SAID[13:]]), False),
        ("What is love?", True),
        ("What is love? Explain.", False),
    ],
)
def test_thirteen_words_in_a_row_are_too_many_twelve_are_not(prompt, meets):
    assert Avoided([QUESTION, "What is LOVE"]).meets([prompt]) == meets


def test_questions_of_files_are_read_and_their_answers_are_not(tmp_path):
    asked, answered = " ".join(f"asked{i}" for i in range(13)), " ".join(f"answered{i}" for i in range(13))
    rows = [
        {"question_id": 81, "turns": ["First.", asked], "reference": [answered]},
        {"question": asked, "answer": answered},
        {"messages": [{"role": "user", "content": asked}]},
        {"text": asked},
        asked,
    ]
    for row in rows:
        avoided = read_avoided([write_lines(tmp_path / "questions.jsonl", row)])
        assert avoided.meets([asked])
        assert not avoided.meets([answered])


def test_prompts_keep_their_order_and_chats_count_by_each_message():
    avoided = Avoided([QUESTION])
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": QUESTION}]
    assert kept_prompts(["one", QUESTION, chat, "two"], avoided) == ["one", "two"]


def test_what_cannot_be_compared_is_named(tmp_path):
    avoided = Avoided([QUESTION])
    with pytest.raises(ValueError, match="prompt 1 must be text or a chat beside --avoid; got tokens"):
        kept_prompts(["one", [1, 2]], avoided)
    with pytest.raises(ValueError, match="all 1 prompts share 13 words in a row with what is to be avoided"):
        kept_prompts([QUESTION], avoided)
    for row, said in (({"reference": "x"}, "got 'reference'"), (3, "got int"), ({"text": 3}, "got 'text'")):
        with pytest.raises(ValueError, match=rf"a\.jsonl, line 1 must be a text, or have .*{said}"):
            read_avoided([write_lines(tmp_path / "a.jsonl", row)])
    (tmp_path / "a.jsonl").write_text(json.dumps("fine") + "\n{\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not JSON"):
        read_avoided([tmp_path / "a.jsonl"])
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="must hold at least one text to avoid; got none"):
        read_avoided([tmp_path / "a.jsonl"])
