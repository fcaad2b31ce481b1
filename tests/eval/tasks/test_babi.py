import pytest

from eval.tasks.babi import babi_sets, read_babi

STORY = """1 Mary went to the garden.
2 John took the milk.
3 Where is Mary? \tgarden\t1
4 Mary went to the hall.
5 Where is Mary? \thall\t4
1 Sandra slept.
2 Is Sandra awake? \tno\t1
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("qa2_b", "qa11_a"):
        (tmp_path / f"{name}_test.txt").write_text(STORY)
    (tmp_path / "qa2_b_train.txt").write_text(STORY.replace("Mary", "Eve"))
    return tmp_path


def test_a_question_sees_the_story_so_far_without_earlier_questions(folder):
    (_, first, one), (_, second, two), (where, third, three) = read_babi(folder / "qa2_b_test.txt")
    assert first == "Mary went to the garden. John took the milk.\nQuestion: Where is Mary?\nAnswer:"
    assert second.startswith("Mary went to the garden. John took the milk. Mary went to the hall.\n")
    assert third == "Sandra slept.\nQuestion: Is Sandra awake?\nAnswer:"
    assert (one, two, three) == ("garden", "hall", "no")
    assert where.endswith("qa2_b_test.txt, line 7")


def test_solved_questions_come_from_the_training_file(folder):
    found = babi_sets(folder / "qa2_b_test.txt", count=None, shots=1, chat=False)[0]
    assert len(found.questions) == 3
    assert found.questions[0].prompt.startswith("Eve went to the garden. ")
    assert "Answer: garden\n\nMary went to the garden." in found.questions[0].prompt


def test_without_a_training_file_solved_questions_are_not_asked(folder):
    found = babi_sets(folder / "qa11_a_test.txt", count=None, shots=2, chat=False)[0]
    assert [q.answer for q in found.questions] == ["no"]
    assert found.questions[0].prompt.count("Answer:") == 3


def test_a_folder_gives_a_set_a_file_by_number(folder):
    found = babi_sets(folder, count=1, shots=0, chat=False)
    assert [s.settings["file"] for s in found] == ["qa2_b_test.txt", "qa11_a_test.txt"]
    assert [len(s.questions) for s in found] == [1, 1]


@pytest.mark.parametrize(
    ("text", "right"),
    [(" garden", True), (" Garden.\nMary", True), ("gardens", False), ("the garden", False), ("", False)],
)
def test_the_first_line_must_be_the_answer(folder, text, right):
    question = babi_sets(folder, count=1, shots=0, chat=False)[0].questions[0]
    assert question.is_correct(text) is right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Mary went.", "line 2: expected a number and a sentence"),
        ("2 Where is Mary? \t", "line 2: expected a question, a tab and its answer"),
        ("2 Mary went.\tgarden\t1", "line 2: expected a question, a tab and its answer"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    bad = tmp_path / "bad.txt"
    bad.write_text(f"1 Mary went to the garden.\n{line}\n")
    with pytest.raises(ValueError, match=message):
        babi_sets(bad, count=None, shots=0, chat=False)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    for source in (tmp_path, tmp_path / "missing.txt"):
        with pytest.raises(FileNotFoundError, match="bAbI needs a file"):
            babi_sets(source, count=None, shots=0, chat=False)


def test_a_file_that_is_all_solved_questions_is_refused(folder):
    with pytest.raises(ValueError, match="must have questions beside 3 solved ones; got 3"):
        babi_sets(folder / "qa11_a_test.txt", count=None, shots=3, chat=False)
