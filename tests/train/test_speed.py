import json

import jax
import pytest

from tests.tiny import tiny_config
from tests.train.run.test_settings import FIELDS
from train.parts.butler.part import Butler
from train.parts.butler.settings import ButlerSettings
from train.parts.drafter.chimera import ChimeraPart
from train.parts.drafter.dflash import DFlashPart
from train.parts.drafter.eagle import EaglePart
from train.parts.drafter.eagle1 import Eagle1Part
from train.parts.drafter.medusa import MedusaPart
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.settings import ChimeraSettings, DFlashSettings, Eagle1Settings, EagleSettings
from train.parts.hamburger.part import Hamburger
from train.parts.hamburger.settings import SmashSettings
from train.run.settings import load_kind
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


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, (8, 32, 2, True, True)),
        ({"batch_size": 16, "length": 16, "accumulate": 1, "remat": False}, (16, 16, 1, False, True)),
    ],
)
def test_a_file_says_what_is_measured_and_what_is_given_replaces_it(tmp_path, monkeypatch, changes, found):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FIELDS | {"accumulate": 2, "remat": True, "scan": True}))
    assert measured(monkeypatch, config=path, **changes) == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, (24, 256, 1, False, False)), ({"batch_size": 4, "scan": True}, (4, 256, 1, False, True))],
)
def test_a_named_shape_without_a_file_is_measured_on_short_rows(monkeypatch, changes, found):
    assert measured(monkeypatch, shape="llama-100m", **changes) == found


def measured(monkeypatch, **options):
    """Returns the settings that a part would be measured with."""
    parts = []
    monkeypatch.setattr("train.speed.measure", lambda part, **_: parts.append(part) or {})
    main(**options)
    settings = parts[0].settings
    return settings.batch_size, settings.length, settings.accumulate, settings.remat, settings.scan


def test_a_shape_comes_from_a_file_or_by_name():
    with pytest.raises(ValueError, match="expected either --config or --shape; got None and None"):
        main()
    with pytest.raises(ValueError, match="no preset 'huge'"):
        main(shape="huge")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "kind", "fields"),
    [
        (Hamburger, SmashSettings, {"base": "frozen", "micro_layers": 1, "micro_steps": 3}),
        (EaglePart, EagleSettings, {"head_size": 50, "test_steps": 3}),
        pytest.param(Eagle1Part, Eagle1Settings, {"test_steps": 2}, marks=pytest.mark.slow),
        (Butler, ButlerSettings, {"predictors": {"gate": {"kind": "gate", "page": 4, "width": 6}}}),
        (MedusaPart, MedusaSettings, {"num_heads": 2}),
        (ChimeraPart, ChimeraSettings, {"decoding_heads": 2}),
        (DFlashPart, DFlashSettings, {"num_layers": 1, "block_size": 4, "anchors": 4}),
    ],
)
def test_modules_are_measured_beside_a_frozen_base(part, kind, fields, tmp_path):
    fields = fields | {"optimiser": {"warmup": 2}, "steps": 6, "batch_size": 8, "length": 16}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    settings = load_kind(kind, tmp_path / "config.json", model=tiny_config())
    found = measure(part(settings), repeats=1)
    shapes = part(settings).shapes()
    counts = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in shapes]
    assert [found["parameters"], found["frozen_parameters"]] == counts
    assert min(counts) > 0
    assert found["tokens_per_second"] > 0
    assert "share_of_peak" not in found


def test_what_cannot_be_measured_is_named(tmp_path):
    kinds = "language-model, hamburger, eagle, eagle1, medusa, chimera, dflash, micro, butler"
    with pytest.raises(ValueError, match=f"of {kinds}; got 'whopper'"):
        main(part="whopper", shape="llama-100m")
    with pytest.raises(ValueError, match="expected --config of the modules and --shape of the base; got None and"):
        main(part="hamburger", shape="llama-100m")
