"""The step that a run ends with, where it is chosen: the best of those that were evaluated."""

import numpy as np
import optax
import pytest

from tests.train.run.test_loop import Cut, Numbered, batch_of, held_out, leaves_equal, squared_error, start
from train.run.choice import Choice, chosen_params, chosen_step
from train.run.loop import Loop, train
from train.run.metrics import read_metrics

CHOICE = Choice({"kept": [batch_of(20_000)]}, score=lambda measured: -abs(measured.loss - 2.0))
"""The loss falls past 2, so that the best step is neither the first nor the last."""


def run(output, *, cut=None, resume=False, evaluate_every=2):
    return train(
        squared_error,
        optax.adam(0.5),
        start(),
        loop=Loop(10, log_every=10, evaluate_every=evaluate_every, save_every=5),
        batches=Numbered(cut=cut),
        held_out=held_out,
        output=output,
        resume=resume,
        choice=CHOICE,
    )


def scores(output):
    lines = read_metrics(output / "metrics.jsonl")
    return {line["step"]: line["choice_score"] for line in lines if "choice_score" in line}


def test_the_step_of_the_highest_score_is_kept_and_no_other(tmp_path):
    last = run(tmp_path)
    found = scores(tmp_path)
    assert [*found] == [2, 4, 6, 8, 10]
    best = max(found, key=found.get)
    assert 2 < best < 10
    assert chosen_step(tmp_path) == (best, found[best])
    kept = chosen_params(tmp_path, start())
    assert not leaves_equal(kept, last.params)
    loss = float(np.mean([squared_error(kept, batch)[0] / 8 for batch in CHOICE.sets["kept"]]))
    assert -abs(loss - 2.0) == pytest.approx(found[best], rel=1e-5)
    assert not any("held_out_loss" in line for line in read_metrics(tmp_path / "metrics.jsonl"))


def test_a_run_that_was_cut_off_keeps_the_step_that_it_would_have_kept(tmp_path):
    run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "cut", cut=7)
    run(tmp_path / "cut", resume=True)
    assert scores(tmp_path / "cut") == scores(tmp_path / "whole")
    assert chosen_step(tmp_path / "cut") == chosen_step(tmp_path / "whole")
    assert leaves_equal(*(chosen_params(tmp_path / name, start()) for name in ("cut", "whole")))


def test_steps_that_a_run_kept_behind_its_checkpoint_are_made_again(tmp_path):
    with pytest.raises(Cut):
        run(tmp_path, cut=7)
    assert chosen_step(tmp_path).step == 6
    # Other evaluations: step 6 is none of them.
    run(tmp_path, resume=True, evaluate_every=5)
    found = scores(tmp_path)
    assert 6 not in found
    best = max(found, key=found.get)
    assert chosen_step(tmp_path) == (best, found[best])


def test_nothing_is_chosen_where_nothing_was_kept(tmp_path):
    assert chosen_step(tmp_path) is None
