import dataclasses
import json

import pytest

from eval.tasks.catalogue import DATA, TASKS, TaskOptions, chosen_tasks
from eval.tasks.choices import ChoiceSet
from eval.tasks.documents import DocumentSet
from eval.tasks.questions import QuestionSet
from eval.tasks.variety import VarietySet

OPTIONS = TaskOptions(size=len, lengths=(700,), count=3)
SHIPPED = [name for name, task in TASKS.items() if task.shipped is not None and not task.long]
RULER = [name for name in TASKS if name.startswith("ruler-")]
RECALL = ["coreference", "key_value", "copying", "arithmetic", "state"]


@pytest.mark.parametrize("task", SHIPPED)
def test_examples_that_come_with_the_project_can_be_read(task):
    for found in TASKS[task].sets(TASKS[task].shipped, OPTIONS):
        assert found.task == task
        if isinstance(found, QuestionSet):
            assert len(found.questions) == 3
            assert not any(q.is_correct("") for q in found.questions)
        elif isinstance(found, ChoiceSet):
            assert len(found.choices) == 3
        elif isinstance(found, VarietySet):
            assert len(found.openings) == 3
        else:
            assert len(found.documents) == 3


@pytest.mark.parametrize("task", [*SHIPPED, "perplexity_decoded", "locations"])
def test_given_tasks_score_text_that_a_whole_forward_reads(task):
    for found in TASKS[task].sets(TASKS[task].shipped, OPTIONS):
        whole = isinstance(found, ChoiceSet) or (isinstance(found, DocumentSet) and not found.decoded)
        assert TASKS[task].given == whole


@pytest.mark.parametrize("task", [name for name in SHIPPED if name not in RECALL])
def test_more_examples_than_a_file_has_are_refused_with_how_many_it_has(task):
    options = TaskOptions(size=len, count=5000)
    with pytest.raises(ValueError, match=r"count must be at most \d+, the examples of .*; got 5000"):
        TASKS[task].sets(TASKS[task].shipped, options)


def test_all_takes_what_is_at_hand():
    assert list(chosen_tasks(["all"], {})) == SHIPPED
    assert {"babi", "gsm8k", "perplexity", "variety", "winogrande", "hellaswag", *RECALL} == set(SHIPPED)
    assert set(chosen_tasks(["all"], {"piqa": "x"})) == {*SHIPPED, "piqa"}


def test_recall_takes_the_drawn_ones():
    assert list(chosen_tasks(["recall", "piqa"], {"piqa": "x"})) == [*RECALL, "piqa"]


def test_ruler_takes_its_thirteen_tasks_at_every_length():
    assert list(chosen_tasks(["ruler"], {})) == RULER
    assert len(RULER) == 13
    options = dataclasses.replace(OPTIONS, lengths=(3000, 4000), template=90)
    for name in RULER:
        found = TASKS[name].sets("", options)
        assert [(one.task, one.length, len(one.examples)) for one in found] == [(name, 3000, 3), (name, 4000, 3)]
        assert all(len(e.text) + one.new_tokens + 90 <= one.length for one in found for e in one.examples)


def test_decoded_tasks_are_drawn_or_shipped():
    (places,) = TASKS["locations"].sets("", OPTIONS)
    assert len(places.locations) == 3
    (source,) = chosen_tasks(["perplexity_decoded"], {}).values()
    (documents,) = TASKS["perplexity_decoded"].sets(source, OPTIONS)
    assert (documents.task, documents.decoded, len(documents.documents)) == ("perplexity_decoded", True, 3)


def test_questions_on_documents_may_come_from_a_file():
    assert chosen_tasks(["ruler-qa_1"], {"ruler-qa_1": "mine"}) == {"ruler-qa_1": "mine"}


@pytest.mark.parametrize("questions", [3, 120])
def test_a_file_of_questions_is_taken_whole_where_no_count_is_given(tmp_path, questions):
    asked = [
        {"question": f"Q{i}?", "answer": f"a{i}", "context": [[f"T{i}", ["One. "]]], "supporting_facts": [[f"T{i}", 0]]}
        for i in range(questions)
    ]
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(asked))
    for count, expected in ((None, questions), (2, 2)):
        options = dataclasses.replace(OPTIONS, lengths=(190,), count=count)
        (found,) = TASKS["ruler-qa_1"].sets(str(path), options)
        assert len({example.references for example in found.examples}) == expected


def test_given_examples_go_before_shipped_ones():
    assert chosen_tasks(["babi"], {"babi": "mine"}) == {"babi": "mine"}


@pytest.mark.parametrize(
    ("names", "data", "message"),
    [
        (["magic"], {}, "task must be one of coreference, .*hellaswag, recall, ruler, all; got 'magic'"),
        (["state"], {"magic": "x"}, "got 'magic'"),
        (["arc_easy"], {}, "arc_easy does not come with the project: give --data arc_easy=FILE"),
        (["state"], {"babi": "x"}, "data is given for babi, which is not among the tasks state"),
        (["state"], {"state": "x"}, "data is given for state, whose examples are drawn"),
        (["ruler-vt"], {"ruler-vt": "x"}, "data is given for ruler-vt, whose examples are drawn"),
        (["locations"], {"locations": "x"}, "data is given for locations, whose examples are drawn"),
        ([], {}, "at least one task"),
    ],
)
def test_a_wrong_choice_is_refused(names, data, message):
    with pytest.raises(ValueError, match=message):
        chosen_tasks(names, data)


def test_every_shipped_file_is_small_and_has_its_licence_told():
    readme = (DATA / "README.md").read_text()
    files = [f for f in DATA.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 400e3
    for file in files:
        top = file.relative_to(DATA).parts[0]
        assert top == "README.md" or f"`{top}" in readme
