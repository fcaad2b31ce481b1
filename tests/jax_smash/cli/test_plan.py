"""`jax-smash plan`."""

import json

import pytest

from jax_smash.chips import CHIPS
from jax_smash.cli.plan_tables import summary
from jax_smash.planning.report import report
from tests.jax_smash.planning.plans import plan

SMALL = ("--dtype", "float32", "--context", "64")


def planned(call, *args):
    status, out, err = call("plan", *args, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_a_folder_its_file_and_its_configuration_alone_are_planned_alike(call, two_layers, tmp_path):
    file = tmp_path / "sizes.json"
    file.write_text((two_layers / "config.json").read_text())
    told = [planned(call, name, *SMALL) for name in (two_layers, two_layers / "config.json", file)]
    for one in told:
        del one["name"]
    assert told[0] == told[1] == told[2]
    assert told[0]["memory"]["weights"] == 4 * 94_912
    assert told[0]["device"]["ridge"] == pytest.approx(0.5 * CHIPS["v5e"].ridge)


def test_the_tables_say_the_same(call, two_layers):
    args = (two_layers, *SMALL, "--method", "suffix", "--acceptance", "0.7", "--device", "h100x2")
    told = planned(call, *args)
    status, out, _ = call("plan", *args)
    assert status == 0
    first = told["time_to_first_token_ms"]
    assert f"first token after {first:.3g} ms" in out
    assert f"memory ends after {told['most_rows']:,} rows" in out
    assert f"{told['decode']['gain']:.2f} times plain decoding's" in out
    for title in (
        "bytes of a device",
        "a decode step, of a device",
        "prompts, ",
        "by batch",
        "trees",
        "gain over plain",
    ):
        assert title in out
    for row in told["trees"]:
        assert row["tree"] in out


def test_a_time_that_no_batch_reaches_is_told_apart_from_memory_that_holds_none():
    told = {"name": "small"} | report(plan(), most_ms=1e-9)
    assert told["best_batch"] is None
    assert summary(told)[-1] == (
        f"memory ends after {told['most_rows']:,} rows; no batch gives a token in the time asked for"
    )
    assert summary(told | {"most_rows": 0})[-1] == "not even the smallest batch fits"


def test_a_shape_by_name_and_its_first_layers(call):
    whole, two = (planned(call, "llama-100m", *SMALL, *more) for more in ((), ("--num-layers", "2")))
    assert two["memory"]["cache"] < whole["memory"]["cache"]


def test_programs_are_compiled_beside_the_plan(call, two_layers):
    told = planned(call, two_layers, *SMALL, "--device", "cpu", "--compile")
    decode = told["compiled"]["programs"][1]
    assert decode["planned_argument_bytes"] == pytest.approx(decode["argument_bytes"], rel=0.05)


def test_a_plan_is_drawn_and_no_picture_is_replaced_unasked(call, two_layers, tmp_path):
    args = ("plan", two_layers, *SMALL, "--plot", "plan.png")
    assert call(*args)[0] == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    status, _, err = call(*args)
    assert status == 2
    assert "plan.png exists" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--device", "v9"), "a device must be of a known chip"),
        (("--device", "v5e:3x3"), "a topology of v5e must be one of 1x1, 2x2"),
        (("--device", "v5e:4x4", "--mesh", "tp=4"), "as many devices as v5e:4x4, which has 16; got 4"),
        (("--mesh", "tp=two"), "mesh must be AXIS=SIZE pairs"),
        (("--device", "h100x5"), "its axis 'mlp' must be divisible by the mesh's tp=5"),
        (("--batch-size", "0"), "--batch-size must be at least 1"),
        (("--context", "9999"), "context must be at most the model's"),
        (("--most-ms", "0"), "--most-ms must be over 0"),
        (("--num-layers", "9"), "--num-layers must be at most the model's 2"),
        (("--kv-budget", "9"), "--kv-budget goes with --sparse"),
        (("--overwrite",), "--overwrite is about --plot"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(call, two_layers, args, said):
    status, out, err = call("plan", two_layers, *args)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
def test_a_configuration_without_a_size_is_refused_by_name(call, two_layers, tmp_path, missing):
    raw = json.loads((two_layers / "config.json").read_text())
    del raw[missing]
    (tmp_path / "part.json").write_text(json.dumps(raw))
    status, _, err = call("plan", "part.json")
    assert status == 1
    assert "part.json" in err
    assert missing in err
