import json

import pytest

from eval.tasks.ruler.catalogue import ruler_examples
from eval.tasks.ruler.question_files import read_questions

PARAGRAPHS = [f"The {word} stands in the hall. It is {word} all over." for word in ("oak", "elm", "ash", "fir")]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": text,
                    "qas": [
                        {"question": f"Q{i}?", "answers": [{"text": f"a{i}"}, {"text": f"b{i}"}, {"text": f"a{i}"}]},
                        {"question": "Has none?", "answers": []},
                    ],
                }
                for i, text in enumerate(PARAGRAPHS)
            ]
        }
    ]
}
HOTPOT = [
    {
        "question": f"H{i}?",
        "answer": f"h{i}",
        "context": [[f"T{i}", ["One. ", "Two."]], [f"U{i}", ["Three."]], [f"V{i}", ["Four."]]],
        "supporting_facts": [[f"T{i}", 0], [f"V{i}", 0], [f"T{i}", 1]],
    }
    for i in range(3)
]


def words(text):
    return len(text.split())


@pytest.fixture
def stored(tmp_path):
    def store(content):
        path = tmp_path / "questions.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return store


def drawn(path, **options):
    return list(ruler_examples("qa_1", **({"count": 2, "length": 95, "seed": 0, "size": words} | options), path=path))


def test_squads_questions_stand_among_other_paragraphs(stored):
    found = drawn(stored(SQUAD), count=4)
    assert sorted(e.references for e in found) == [(f"a{i}", f"b{i}") for i in range(4)]
    for example in found:
        number = int(example.references[0][1:])
        assert example.prompt.endswith(f"Question: Q{number}?")
        assert PARAGRAPHS[number] in example.prompt
        assert words(example.text) + 32 <= 95
        assert example.score(f"It is B{number}.") == 1
        assert example.score("c") == 0


def test_hotpots_questions_have_two_documents_and_all_others_beside_them(stored):
    path = stored(HOTPOT)
    assert read_questions(path)[1].documents == ("T1\nOne. Two.", "V1\nFour.")
    for example in drawn(path, length=80):
        number = example.references[0][1:]
        assert f"\nT{number}\nOne. Two." in example.prompt
        assert f"\nV{number}\nFour." in example.prompt
        assert example.prompt.count("Document") > 3


def test_the_same_seed_draws_the_same_questions_of_a_file(stored):
    path = stored(SQUAD)
    assert drawn(path, count=4) == drawn(path, count=4)
    assert drawn(path, count=4) != drawn(path, count=4, seed=1)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("{", {}, "questions.json: not JSON"),
        ({"rows": []}, {}, "form of SQuAD or HotpotQA; KeyError: 'data'"),
        ([1], {}, "form of SQuAD or HotpotQA; TypeError"),
        ({"data": []}, {}, "must hold at least one question with an answer; got none"),
        ([HOTPOT[0] | {"answer": " "}], {}, "questions.json: expected a text; got ' '"),
        ([HOTPOT[0] | {"supporting_facts": [["X", 0]]}], {}, r"must name a title of the context; got \['X'\]"),
        (SQUAD, {"count": 5}, "count must be at most 4, the questions of"),
        (SQUAD, {"length": 500}, r"length must be at most \d+ for ruler-qa_1: there is no more text; got 500"),
        (SQUAD, {"length": 40}, r"length must be at least \d+"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(stored, content, options, message):
    with pytest.raises(ValueError, match=message):
        drawn(stored(content), **options)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="file of questions does not exist"):
        drawn(tmp_path / "none.json")
