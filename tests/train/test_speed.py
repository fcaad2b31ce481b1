import json

import pytest

from tests.train.test_settings import FIELDS
from train.speed import main


def test_a_short_measurement_states_what_it_measured(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    output = tmp_path / "speed.json"
    main(config=tmp_path / "config.json", batch_size=8, length=16, repeats=2, output=output)
    found = json.loads(output.read_text())
    assert (found["batch_size"], found["length"], found["optimiser"]) == (8, 16, "adamw")
    assert 0 < found["tokens_per_second"] <= found["best_tokens_per_second"]
    assert found["step_memory_mb"] > 0
    assert "tokens per second" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match=r"speed\.json exists"):
        main(config=tmp_path / "config.json", output=output)


def test_a_shape_comes_from_a_file_or_by_name():
    with pytest.raises(ValueError, match="expected either --config or --shape; got None and None"):
        main()
    with pytest.raises(ValueError, match="no preset 'huge'"):
        main(shape="huge")
