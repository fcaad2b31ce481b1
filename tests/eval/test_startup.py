import json
import os
import sys

import pytest
from huggingface_hub import constants

from eval.startup import AGAIN, FIRST, NAMED_AGAIN, NAMED_FIRST, Settings, main, measure, started


@pytest.mark.slow
def test_starts_are_timed_until_their_first_text(tmp_path):
    path = tmp_path / "startup.json"
    main(Settings(model="tiny", prompt="I would like a table for two.", repeats=1, json=path))
    rows = json.loads(path.read_text())["rows"]
    assert [(row["way"], row["n"]) for row in rows] == [(way, 1) for way in (FIRST, AGAIN, NAMED_FIRST, NAMED_AGAIN)]
    assert len({row["text"] for row in rows}) == 1
    assert rows[0]["text"]
    assert all(row["range"]["low"] <= row["seconds"] <= row["range"]["high"] for row in rows)


def test_a_process_that_fails_is_told():
    with pytest.raises(RuntimeError, match=r"jax-smash generate failed: .*no model 'absent'"):
        measure(Settings(model="absent", repeats=1))


def test_models_of_the_hub_are_looked_up_where_they_were(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nprintf "$HF_HOME $XDG_CACHE_HOME"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.delenv("HF_HOME", raising=False)
    _, told = started(Settings(), tmp_path / "cache")
    assert told == f"{constants.HF_HOME} {tmp_path / 'cache'}"
    assert os.path.isabs(constants.HF_HOME)


def test_no_start_is_no_measurement():
    with pytest.raises(ValueError, match="repeats must be at least 1; got 0"):
        measure(Settings(repeats=0))
