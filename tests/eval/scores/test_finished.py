import json
import os

import pytest

from eval.scores.finished import Finished, file_states
from eval.scores.intervals import Interval
from eval.scores.paired import COMPARES
from eval.scores.smashing import Compression
from eval.tasks.outcome import Outcome

RUN = {"seed": 0, "tasks": ("a", "b")}
WHOSE = {"model": "m", "weights": "plain"}
INTERVAL = Interval(0.1, 0.7, "wilson")


def outcome(score=0.1 + 0.2, compare="shares", interval=INTERVAL):
    return Outcome(
        task="a",
        metric="acc",
        settings={"shots": 2},
        n=3,
        score=score,
        interval=interval,
        examples=[{"example": "ü", "score": 1, "values": [-1 / 3, 2.5e-17]}],
        compare=COMPARES[compare],
        more={"truncated": 1},
        compression=Compression(prompt=3, tokens=2, slots=1, micro_steps=1),
    )


@pytest.mark.parametrize("compare", COMPARES)
def test_outcomes_come_back_as_they_were(tmp_path, compare):
    path = tmp_path / "a.partial"
    kept = [outcome(compare=compare), outcome(score=1.0, interval=None)]
    Finished(path, RUN, resume=False).add(WHOSE, 1, kept)
    found = Finished(path, RUN, resume=True)
    assert found.get(WHOSE, 1) == kept
    assert found.get(WHOSE, 0) is None
    assert found.get(WHOSE | {"weights": "int8"}, 1) is None


def test_nothing_is_written_before_a_set_is_finished_and_each_run_adds_its_own(tmp_path):
    path = tmp_path / "a.partial"
    first = Finished(path, RUN, resume=True)
    assert not path.exists()
    first.add(WHOSE, 0, [outcome()])
    Finished(path, RUN, resume=True).add(WHOSE, 1, [outcome(0.5)])
    last = Finished(path, RUN, resume=True)
    assert [last.get(WHOSE, i)[0].score for i in (0, 1)] == [0.1 + 0.2, 0.5]


@pytest.mark.parametrize("left", [0, 5, -1])
def test_a_line_that_was_cut_off_is_dropped_and_written_over(tmp_path, left):
    path = tmp_path / "a.partial"
    one = Finished(path, RUN, resume=False)
    one.add(WHOSE, 0, [outcome()])
    whole = path.stat().st_size
    one.add(WHOSE, 1, [outcome()])
    os.truncate(path, whole + left if left >= 0 else path.stat().st_size - 1)
    again = Finished(path, RUN, resume=True)
    assert (again.get(WHOSE, 0), again.get(WHOSE, 1)) == ([outcome()], None)
    again.add(WHOSE, 1, [outcome(0.25)])
    assert Finished(path, RUN, resume=True).get(WHOSE, 1) == [outcome(0.25)]


def test_a_file_whose_first_line_was_cut_off_holds_nothing(tmp_path):
    path = tmp_path / "a.partial"
    path.write_text('{"run": {"se')
    found = Finished(path, RUN, resume=True)
    assert found.get(WHOSE, 0) is None
    found.add(WHOSE, 0, [outcome()])
    assert Finished(path, RUN, resume=True).get(WHOSE, 0) == [outcome()]


def test_another_run_is_told_by_what_differs(tmp_path):
    path = tmp_path / "a.partial"
    Finished(path, RUN, resume=False).add(WHOSE, 0, [outcome()])
    with pytest.raises(ValueError, match=r"a\.partial was begun with seed 0; got 1: resume as it was begun"):
        Finished(path, RUN | {"seed": 1}, resume=True)
    with pytest.raises(ValueError, match='was begun with commit null; got "abc"'):
        Finished(path, RUN | {"commit": "abc"}, resume=True)
    assert Finished(path, RUN | {"seed": 1}, resume=False).get(WHOSE, 0) is None


def test_outcomes_of_other_code_are_not_kept(tmp_path):
    path = tmp_path / "a.partial"
    one = Finished(path, RUN, resume=False, same_code=True)
    one.add(WHOSE, 0, [outcome()])
    one.add(WHOSE, 1, [outcome()])
    _, first, second = map(json.loads, path.read_text().splitlines())
    assert "eval/scores/finished.py" in first["code"]
    assert "code" not in second
    assert Finished(path, RUN, resume=True, same_code=True).get(WHOSE, 1) == [outcome()]
    second["code"] = {"eval/gone.py": "0" * 64}
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"run": RUN}, first, second)))
    with pytest.raises(ValueError, match=r"a\.partial was begun by another eval/gone\.py: its tasks are not kept"):
        Finished(path, RUN, resume=True, same_code=True)
    assert Finished(path, RUN, resume=True).get(WHOSE, 1) == [outcome()]


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "a.partial"
    path.write_text(json.dumps({"other": 1}) + "\n")
    with pytest.raises(ValueError, match=r"a\.partial cannot be read as finished tasks"):
        Finished(path, RUN, resume=True)


def test_a_changed_file_has_another_state(tmp_path):
    file = tmp_path / "folder" / "a"
    file.parent.mkdir()
    file.write_text("one")
    (tmp_path / "folder" / "programs" / "jax-1.0-jaxlib-1.0").mkdir(parents=True)
    (tmp_path / "folder" / "programs" / "jax-1.0-jaxlib-1.0" / "x-cache").write_text("compiled")
    before = file_states(file.parent, tmp_path / "missing")
    assert list(before) == [str(file)]
    file.write_text("three")
    assert file_states(file.parent) != before
