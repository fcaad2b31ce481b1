import json

import jax
import pytest

from tests.tiny import tiny_config
from tests.train.test_settings import FIELDS
from train.parts.butler.part import Butler
from train.parts.butler.settings import ButlerSettings
from train.parts.hamburger import Hamburger
from train.settings import load_kind
from train.smash_settings import SmashSettings
from train.speed import main, measure


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


def test_modules_are_measured_beside_a_frozen_base(tmp_path):
    fields = {"base": "frozen", "micro_layers": 1, "micro_steps": 3, "optimiser": {"warmup": 2}, "steps": 6}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"batch_size": 8, "length": 16}))
    settings = load_kind(SmashSettings, tmp_path / "config.json", model=tiny_config())
    found = measure(Hamburger(settings), repeats=1)
    shapes = Hamburger(settings).shapes()
    counts = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in shapes]
    assert [found["parameters"], found["frozen_parameters"]] == counts
    assert min(counts) > 0
    assert found["tokens_per_second"] > 0
    assert "share_of_peak" not in found


def test_a_predictor_of_attention_is_measured_beside_its_base(tmp_path):
    fields = {"predictor": {"kind": "gate", "page": 4, "width": 6}, "optimiser": {"warmup": 2}, "steps": 6}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"batch_size": 8, "length": 16}))
    found = measure(Butler(load_kind(ButlerSettings, tmp_path / "config.json", model=tiny_config())), repeats=1)
    assert 0 < found["parameters"] < found["frozen_parameters"]
    assert found["tokens_per_second"] > 0


def test_what_cannot_be_measured_is_named(tmp_path):
    with pytest.raises(ValueError, match="part must be one of language-model, hamburger, butler; got 'whopper'"):
        main(part="whopper", shape="llama-100m")
    with pytest.raises(ValueError, match="expected --config of the modules and --shape of the base; got None and"):
        main(part="hamburger", shape="llama-100m")
    with pytest.raises(ValueError, match="expected --config of the predictor and --shape of the base; got None and"):
        main(part="butler", shape="llama-100m")
