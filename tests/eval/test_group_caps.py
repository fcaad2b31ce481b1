"""Caps of HAMburger's speed by arithmetic."""

import json

import pytest

from eval.group_caps import Settings, caps, main


def test_a_micro_step_of_the_papers_base():
    # 4 layers and the head of Llama-3.2-1B are 243M and 263M of 1,236M parameters; the stop head is another 8M.
    (row,) = caps(Settings(shapes=("llama-3.2-1b",), micro_layers=(4,), micro_heads=("full",)))
    assert row["micro_step_cost"] == pytest.approx((243 + 263 + 8) / 1236, abs=0.003)
    assert row["cap_1"] == 1
    assert row["cap_4"] == pytest.approx(4 / (1 + 3 * row["micro_step_cost"]))


def test_smaller_heads_and_fewer_layers_raise_the_cap():
    heads = caps(Settings(shapes=("llama-3.2-1b",), micro_layers=(4,)))
    full, reduced, int8 = (next(row for row in heads if row["micro_head"] == h) for h in ("full", "16384", "int8"))
    assert full["micro_step_cost"] > int8["micro_step_cost"] > reduced["micro_step_cost"]
    assert full["cap_4"] < int8["cap_4"] < reduced["cap_4"]
    (fewer,) = caps(Settings(shapes=("llama-3.2-1b",), micro_layers=(1,), micro_heads=("full",)))
    assert full["micro_step_cost"] > fewer["micro_step_cost"]
    assert full["cap_4"] < fewer["cap_4"]


@pytest.mark.parametrize(
    "shapes",
    [
        ("llama-3.2-1b", "llama-3.1-8b"),
        pytest.param(("llama-3.1-8b", "llama-3.1-70b"), marks=pytest.mark.slow),
    ],
)
def test_larger_bases_raise_the_cap(shapes):
    smaller, larger = caps(Settings(shapes=shapes, micro_layers=(4,), micro_heads=("full",)))
    assert smaller["micro_step_cost"] > larger["micro_step_cost"]
    assert smaller["cap_4"] < larger["cap_4"]


def test_the_files(tmp_path, capsys):
    settings = Settings(shapes=("llama-100m",), json=tmp_path / "a.json", plot=tmp_path / "a.png")
    main(settings, ["--shapes", "llama-100m"])
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 6
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "llama-100m" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shapes": ()}, "shapes must name at least one"),
        ({"shapes": ("no-such-shape",)}, "no preset 'no-such-shape'"),
        ({"micro_layers": (0,)}, "must be at least 1; got 0"),
        ({"micro_heads": ("half",)}, "micro_head must be full, int8 or a number of tokens; got 'half'"),
        ({"micro_heads": ("999999",)}, "micro_head must be at most the vocabulary's 128256 tokens; got 999999"),
    ],
)
def test_what_cannot_be_computed_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        caps(Settings(**changes))
