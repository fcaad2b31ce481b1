import json
from decimal import Decimal

import pytest

from eval.tasks.gsm8k import final_number, gsm8k_set

PROBLEMS = [
    {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    {"question": "A thousand and two? ", "answer": "1,000 + 2\n#### 1,002"},
    {"question": "One less than none?", "answer": "#### -1"},
]


def write(path, problems):
    path.write_text("".join(json.dumps(p) + "\n" for p in problems))
    return path


def read(source, **options):
    return gsm8k_set(str(source), **({"count": None, "shots": 0, "chat": False, "max_new_tokens": None} | options))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", "7"),
        ("#### 7\nThen 9.", "7"),
        ("She has $1,234.50 left", "1234.5"),
        ("from 3 to -2", "-2"),
        ("first 5, then 6.", "6"),
        ("####12", "12"),
    ],
)
def test_the_final_number_is_the_marked_one_or_the_last(text, number):
    assert final_number(text) == Decimal(number)


def test_a_text_without_numbers_has_no_final_one():
    assert final_number("none") is None


def test_numbers_are_compared_by_value(tmp_path):
    question = read(write(tmp_path / "a.jsonl", PROBLEMS)).questions[1]
    assert question.is_correct("#### 1002.0")
    assert question.is_correct("That makes $1,002")
    assert not question.is_correct("#### 1003")
    assert not question.is_correct("")


def test_solved_problems_stand_before_the_question_as_they_are(tmp_path):
    write(tmp_path / "train.jsonl", PROBLEMS)
    found = read(write(tmp_path / "test.jsonl", PROBLEMS[1:]), shots=1)
    assert len(found.questions) == 2
    expected = "Question: Two and two?\nAnswer: It is <<2+2=4>>4.\n#### 4\n\nQuestion: A thousand and two?\nAnswer:"
    assert found.questions[0].prompt == expected
    assert found.settings == {"shots": 1}
    assert read(tmp_path, shots=1).questions[0].prompt == expected


def test_without_a_training_file_solved_problems_are_not_asked(tmp_path):
    found = read(write(tmp_path / "a.jsonl", PROBLEMS), shots=2)
    assert [q.answer for q in found.questions] == ["-1"]


def test_an_answer_without_its_mark_is_named(tmp_path):
    bad = write(tmp_path / "bad.jsonl", [PROBLEMS[0], {"question": "?", "answer": "4"}])
    with pytest.raises(ValueError, match=r'bad.jsonl, line 2: expected an "answer" that ends in "#### N"'):
        read(bad)


def test_more_solved_problems_than_there_are_is_refused(tmp_path):
    with pytest.raises(ValueError, match="beside 5 solved ones; got 3"):
        read(write(tmp_path / "a.jsonl", PROBLEMS), shots=5)
