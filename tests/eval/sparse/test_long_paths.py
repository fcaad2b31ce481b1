import json

import pytest

from eval.scores.engine import Engine
from eval.sparse.long_paths import path_set
from tests.eval.reference import small


def written(folder, *records):
    path = folder / "paths.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_continuation_is_right_where_it_holds_the_answer(tmp_path):
    found = path_set(written(tmp_path, {"context": "The cat", "answer": "Mat"}), count=None)
    assert found.metric == "accuracy"
    assert found.questions[0].is_correct("on a MAT.")
    assert not found.questions[0].is_correct("on a rug")


def test_summaries_are_graded_by_the_words_that_they_share(tmp_path):
    prompts = [f"The {word} sat on the" for word in ("cat", "dog", "king")]
    engine = Engine(small(), batch_size=4, context=64)
    said = [c.text for c in engine.continuations([engine.encode(p) for p in prompts], max_new_tokens=12)]
    answers = [said[0].upper(), f"unheard {said[1]} unheard", "unheard"]
    records = [{"context": c, "answer": a, "metric": "rouge_l"} for c, a in zip(prompts, answers, strict=True)]
    (outcome,) = path_set(written(tmp_path, *records), count=None, new_tokens=12).measure(engine)
    scores = [example["score"] for example in outcome.examples]
    assert outcome.metric == "rouge_l"
    assert scores[0] == 1
    assert 0 < scores[1] < 1
    assert scores[2] == 0
    assert outcome.score == pytest.approx(sum(scores) / 3)
    assert outcome.interval.low <= outcome.score <= outcome.interval.high


@pytest.mark.parametrize("metrics", [("bleu",), ("rouge_l", None), (["rouge_l"],)])
def test_a_metric_that_is_unknown_or_not_that_of_all_is_refused(tmp_path, metrics):
    records = [{"context": "a", "answer": "b"} | ({} if m is None else {"metric": m}) for m in metrics]
    with pytest.raises(ValueError, match=rf"line {len(metrics)}: metric must be accuracy or rouge_l, the same in all"):
        path_set(written(tmp_path, *records), count=None)


def meeting(**changed):
    turns = [{"speaker": "Ann", "content": "It rains."}, {"speaker": "Bo", "content": "We stay."}]
    part = [{"query": "Why do they stay?", "answer": "Because of rain.", "relevant_text_span": [["0", "1"]]}]
    whole = [{"query": "Summarize it.", "answer": "They stay."}]
    fields = {"meeting_transcripts": turns, "specific_query_list": part, "general_query_list": whole}
    return fields | changed


def test_every_query_on_a_meeting_is_asked_behind_all_that_is_said(tmp_path):
    found = path_set(written(tmp_path, meeting(), meeting(specific_query_list=[])), count=None)
    said = "Ann: It rains.\nBo: We stay.\n\n"
    assert [question.prompt for question in found.questions] == [
        f"{said}Question: Why do they stay?\nAnswer:",
        *2 * [f"{said}Question: Summarize it.\nAnswer:"],
    ]
    assert [question.answer for question in found.questions] == ["Because of rain.", "They stay.", "They stay."]
    assert found.metric == "rouge_l"
    assert len(path_set(written(tmp_path, meeting()), count=1).questions) == 1


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"meeting_transcripts": "Ann: It rains."}, 'line 1: expected a list of objects "meeting_transcripts"'),
        ({"general_query_list": [{"query": "Summarize it."}]}, 'line 1: expected a text "answer"'),
    ],
)
def test_a_meeting_without_a_part_is_refused(tmp_path, changed, complaint):
    with pytest.raises(ValueError, match=complaint):
        path_set(written(tmp_path, meeting(**changed)), count=None)
