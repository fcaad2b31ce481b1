import json

import pytest

from eval.tasks.choice_formats import FORMATS, choice_set
from eval.tasks.records import Record

OPTIONS = {"text": ["a cat", "a dog", "a cow"], "label": ["A", "B", "C"]}
LISTED = [{"text": t, "label": n} for t, n in zip(OPTIONS["text"], "123", strict=True)]
HELLASWAG = {
    "activity_label": "Roof shingle removal",
    "ctx_a": "A man is [substeps] sitting on a roof.",
    "ctx_b": "he",
    "endings": ["is using wrap.", "[header] starts  pulling up roofing."],
    "label": "1",
}


def read(task, **fields):
    choice = FORMATS[task](Record("here", fields))
    assert len(choice.contexts) == len(choice.continuations)
    return choice


@pytest.mark.parametrize(
    "fields",
    [
        {"goal": "Open a jar.", "sol1": "Twist.", "sol2": "Sing.", "label": 0},
        {"query": "Question: Open a jar.\n", "choices": ["Twist.", "Sing."], "gold": 0},
    ],
)
def test_piqa(fields):
    choice = read("piqa", **fields)
    assert set(choice.contexts) == {"Question: Open a jar.\nAnswer:"}
    assert choice.continuations == (" Twist.", " Sing.")
    assert choice.right == 0
    assert not choice.partial


@pytest.mark.parametrize("task", ["arc_easy", "arc_challenge"])
@pytest.mark.parametrize(
    "fields",
    [
        {"question": {"stem": "What barks?", "choices": LISTED}, "answerKey": "2"},
        {"question": "What barks?", "choices": OPTIONS, "answerKey": "B"},
        {"query": "Question: What barks?", "choices": OPTIONS["text"], "gold": 1},
    ],
)
def test_arc(task, fields):
    choice = read(task, **fields)
    assert choice.contexts[0] == "Question: What barks?\nAnswer:"
    assert choice.continuations == (" a cat", " a dog", " a cow")
    assert choice.right == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"question": {"stem": "A thing that barks is", "choices": LISTED}, "answerKey": "3"},
        {"question_stem": "A thing that barks is", "choices": OPTIONS, "answerKey": "C"},
        {"query": "A thing that barks is", "choices": OPTIONS["text"], "gold": 2},
    ],
)
def test_openbookqa(fields):
    choice = read("openbookqa", **fields)
    assert (choice.contexts[0], choice.continuations[2], choice.right) == ("A thing that barks is", " a cow", 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"sentence": "Ann called Eve because _ was ill.", "option1": "Ann", "option2": "Eve", "answer": "2"},
        {
            "context_options": ["Ann called Eve because Ann", "Ann called Eve because Eve"],
            "continuation": "was ill.",
            "gold": 1,
        },
    ],
)
def test_winogrande_scores_what_follows_the_gap(fields):
    choice = read("winogrande", **fields)
    assert choice.contexts == ("Ann called Eve because Ann", "Ann called Eve because Eve")
    assert choice.continuations == (" was ill.", " was ill.")
    assert choice.right == 1
    assert choice.partial


def test_a_mark_right_behind_the_gap_gets_no_space():
    fields = {"sentence": "Ann saw the _'s tail.", "option1": "dog", "option2": "cat", "answer": "1"}
    assert read("winogrande", **fields).continuations == ("'s tail.",) * 2


def test_hellaswag():
    choice = read("hellaswag", **HELLASWAG)
    # As lm-evaluation-harness has it: an ending whose mark stood first keeps the space behind the mark.
    assert choice.contexts[0] == "Roof shingle removal: A man is sitting on a roof. He"
    assert choice.continuations == (" is using wrap.", "  starts pulling up roofing.")
    assert choice.right == 1


def test_a_hellaswag_context_is_written_as_lm_evaluation_harness_writes_it():
    fields = HELLASWAG | {
        "activity_label": "How to paint",
        "ctx_a": "[header] A wall [title] Clean  it.",
        "ctx_b": "then I",
    }
    assert read("hellaswag", **fields).contexts[0] == "How to paint: A wall. Clean it. Then i"
    assert read("hellaswag", **fields | {"ctx_b": ""}).contexts[0] == "How to paint: A wall. Clean it."


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("piqa", {"goal": "?", "sol1": "a", "sol2": "b", "label": 2}, 'a number "label" from 0 … 1; got 2'),
        ("piqa", {"goal": "?", "sol1": "a", "label": 0}, 'a text "sol2"'),
        ("piqa", {"goal": "?", "sol1": "a", "sol2": " ", "label": 0}, "not empty"),
        ("arc_easy", {"question": "?", "choices": OPTIONS, "answerKey": "D"}, "among the labels A, B, C; got D"),
        ("arc_easy", {"question": "?", "choices": ["a", "b"], "answerKey": "A"}, '"choices" with text and label'),
        ("winogrande", {"sentence": "none", "option1": "a", "option2": "b", "answer": "1"}, 'one gap "_"; got 0'),
        ("winogrande", {"sentence": "a _", "option1": "a", "option2": "b", "answer": "1"}, "text behind the gap"),
        ("hellaswag", HELLASWAG | {"endings": ["one"]}, "two or more texts"),
        ("openbookqa", {}, "got the fields none"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path, task, fields, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"a.jsonl, line 1: .*{message}"):
        choice_set(task, str(path), count=None)


def test_solved_questions_stand_before_those_asked_and_are_not_asked(tmp_path):
    path = tmp_path / "a.jsonl"
    asked = [{"goal": f"Goal {i}.", "sol1": "Sing.", "sol2": "Twist.", "label": i % 2} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in asked))
    found = choice_set("piqa", str(path), count=1, shots=2)
    solved = "Question: Goal 0.\nAnswer: Sing.\n\nQuestion: Goal 1.\nAnswer: Twist.\n\n"
    assert [choice.contexts for choice in found.choices] == [(solved + "Question: Goal 2.\nAnswer:",) * 2]
    assert found.settings == {"shots": 2}
    with pytest.raises(ValueError, match="must have questions beside 4 solved ones; got 4"):
        choice_set("piqa", str(path), count=None, shots=4)
