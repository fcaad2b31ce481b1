import json

from train.stages.recipe_run import how_far, last_line


def test_the_last_whole_line_is_told(tmp_path):
    log = tmp_path / "a.log"
    assert last_line(log) == ""
    log.write_text("one\ntwo \n\nthr")
    assert last_line(log) == "two"
    log.write_text("x" * 5000 + "\nlast\n")
    assert last_line(log) == "last"


def test_a_training_run_is_told_by_its_step_and_others_by_their_log(tmp_path):
    log, run = tmp_path / "run.log", tmp_path / "run"
    log.write_text("--- begun\n")
    assert how_far(run, log) == "--- begun"
    run.mkdir()
    (run / "settings.json").write_text(json.dumps({"steps": 2600}))
    assert how_far(run, log) == "--- begun"
    (run / "metrics.jsonl").write_text('{"step": 1200, "loss": 3.5, "tokens_per_second": 9}\n{"step": 13')
    assert how_far(run, log) == "step 1,200 of 2,600, loss 3.500"
    (run / "metrics.jsonl").write_text('{"step": 1200, "held_out_loss": 3.25, "held_out": {}}\n')
    assert how_far(run, log) == "step 1,200 of 2,600, held out loss 3.250"
