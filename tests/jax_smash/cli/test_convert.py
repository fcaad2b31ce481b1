"""`jax-smash convert`."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file

import jax_smash
from jax_smash.checkpoints.contents import DRAFTERS
from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.checkpoints.eagle1 import save_eagle1
from jax_smash.checkpoints.medusa import random_heads, save_medusa
from jax_smash.cli.convert import PUBLISHED
from jax_smash.loading import stored_base
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1


def marks(base):
    """Returns what a drafter that was trained for a model says of it."""
    return {"base_fingerprint": stored_base(base)[1](), "trained_length": 64}


def test_there_and_back_gives_the_same_bits(run, call, two_layers, tmp_path):
    result = run("convert", two_layers, "orbax", "--to", "orbax")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f"wrote {tmp_path / 'orbax'}\n"
    assert call("convert", "orbax", "back")[0] == 0
    before, after = (load_file(path / "model.safetensors") for path in (two_layers, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert sorted(os.listdir(tmp_path / "back")) == sorted(os.listdir(two_layers))
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "back" / name).read_bytes() == (two_layers / name).read_bytes()


def test_another_dtype_and_layout_decode_all_the_same(call, model, tmp_path):
    arguments = ("--prompt", "The cat", "--max-new-tokens", "8", "--dtype", "bfloat16")
    assert call("convert", model, "half", "--dtype", "bfloat16")[0] == 0
    assert call("convert", "half", "orbax", "--to", "orbax")[0] == 0
    texts = {call("generate", "--model", path, *arguments)[:2] for path in (model, "half", "orbax")}
    assert len(texts) == 1
    assert texts.pop()[0] == 0
    size, whole = ((path / "model.safetensors").stat().st_size for path in (tmp_path / "half", model))
    assert size < 0.6 * whole


def test_a_drafter_goes_to_the_published_layout_and_back_bit_for_bit(call, two_layers, tmp_path):
    made = random_drafter(jax_smash.load(two_layers), tokens=range(30, 60), taps=(0, 1))
    save_eagle(
        tmp_path / "ours", made.config, made.params, base_fingerprint=stored_base(two_layers)[1](), trained_length=64
    )
    status, _, told = call("convert", "ours", "published", "--to", "vllm")
    assert (status, told.splitlines()[-1]) == (0, "wrote published")
    # A target that is occupied is told of before anything is read.
    status, _, told = call("convert", "nowhere", "published", "--to", "sglang")
    assert status == 1
    assert "published must be a new or empty directory" in told
    again = ("convert", "published", "again", "--to", "eagle", "--base", two_layers)
    assert "may mean what enters" in call(*again)[2]
    assert call(*again, "--layer-ids", "inputs")[0] == 0
    for name in ("eagle.json", "eagle.safetensors"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    status, _, told = call("convert", "published", "other", "--to", "eagle")
    assert status == 2
    assert "--to eagle needs --base MODEL" in told


def test_a_drafter_that_says_tokens_by_the_targets_rows_is_written_with_these(call, two_layers, tmp_path):
    target, tokens = jax_smash.load(two_layers), range(30, 60)
    made = random_drafter(target, tokens=tokens, taps=(0, 1), own_rows=False)
    save_eagle(
        tmp_path / "ours", made.config, made.params, base_fingerprint=stored_base(two_layers)[1](), trained_length=64
    )
    assert "needs the model as its base; got none" in call("convert", "ours", "published", "--to", "vllm")[2]
    assert not (tmp_path / "published").exists()
    status, _, told = call("convert", "ours", "published", "--to", "vllm", "--base", two_layers)
    assert status == 0, told
    written = load_file(tmp_path / "published/model.safetensors")["lm_head.weight"]
    np.testing.assert_array_equal(written, target.params["target"]["head"][...][30:60])


def test_an_eagle_1_drafter_goes_to_the_published_layouts_and_back_bit_for_bit(call, two_layers, tmp_path):
    model = jax_smash.load(two_layers)
    for layout, bias in (("vllm", False), ("sglang", True)):
        made, ours = random_drafter1(model, join_bias=bias), tmp_path / f"ours-{layout}"
        save_eagle1(ours, made.config, made.params, **marks(two_layers))
        assert (
            "needs --base MODEL, the model that the EAGLE-1 drafter is for"
            in call("convert", ours, layout, "--to", layout)[2]
        )
        status, _, told = call("convert", ours, layout, "--to", layout, "--base", two_layers)
        assert (status, told.splitlines()[-1]) == (0, f"wrote {layout}")
        again = ("convert", layout, f"{layout}-again", "--to", "eagle", "--base", two_layers)
        assert "--layer-ids goes with EAGLE-3" in call(*again, "--layer-ids", "inputs")[2]
        assert call(*again)[0] == 0
        for name in ("eagle1.json", "eagle1.safetensors"):
            assert (ours / name).read_bytes() == (tmp_path / f"{layout}-again" / name).read_bytes()
    assert "vLLM passes over fc.bias" in call("convert", ours, "other", "--to", "vllm", "--base", two_layers)[2]


def test_heads_go_to_the_published_layouts_and_back_bit_for_bit(call, two_layers, tmp_path):
    made = random_heads(jax_smash.load(two_layers).config)
    save_medusa(
        tmp_path / "ours", made.config, made.params, base_fingerprint=stored_base(two_layers)[1](), trained_length=64
    )
    for layout, options in (("vllm", ()), ("authors", ("--base", two_layers))):
        status, _, told = call("convert", "ours", layout, "--to", layout, *options)
        assert (status, told.splitlines()[-1]) == (0, f"wrote {layout}")
        assert call("convert", layout, f"{layout}-again", "--to", "medusa", "--base", two_layers)[0] == 0
        for name in ("medusa.json", "medusa.safetensors"):
            assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / f"{layout}-again" / name).read_bytes()
    assert "--to authors needs --base MODEL" in call("convert", "ours", "other", "--to", "authors")[2]
    assert "--base goes with the drafters of a model" in call("convert", two_layers, "other", "--base", two_layers)[2]


@pytest.mark.parametrize(
    ("file", "layout", "said"),
    [
        ("medusa.json", "sglang", "Medusa's heads (medusa.json), which goes to --to vllm or --to authors"),
        ("eagle.json", "authors", "EAGLE-3's drafter (eagle.json), which goes to --to vllm or --to sglang"),
        ("chimera.json", "vllm", "Chimera's drafter (chimera.json), which goes to no published layout"),
        ("dflash.json", "sglang", "DFlash's drafter (dflash.json), which goes to no published layout"),
    ],
)
def test_a_drafter_does_not_go_to_a_layout_of_another_kind(call, tmp_path, file, layout, said):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / file).write_text("{}")
    status, _, told = call("convert", "ours", "other", "--to", layout, "--base", "tiny")
    assert status == 2
    assert not (tmp_path / "other").exists()
    assert f"ours holds {said}; got --to {layout}" in told


def test_every_kind_of_drafter_is_known_by_its_layouts():
    assert {*PUBLISHED} == {*DRAFTERS}


def test_vectors_of_another_base_do_not_go_into_a_drafters_file(call, two_layers, tmp_path):
    target = jax_smash.load(two_layers)
    heads, eagle = (
        random_heads(target.config),
        random_drafter(target, tokens=range(30, 60), taps=(0, 1), own_rows=False),
    )
    save_medusa(tmp_path / "heads", heads.config, heads.params, base_fingerprint="ab" * 32)
    save_eagle(tmp_path / "eagle", eagle.config, eagle.params, base_fingerprint="ab" * 32)
    one = random_drafter1(target)
    save_eagle1(tmp_path / "one", one.config, one.params, base_fingerprint="ab" * 32)
    for ours, layout in (("heads", "vllm"), ("heads", "authors"), ("eagle", "vllm"), ("one", "sglang")):
        status, _, told = call("convert", ours, "other", "--to", layout, "--base", two_layers)
        assert status == 1
        assert f"the drafter in {ours} was trained for a base whose weights have fingerprint abababababababab…" in told
    # Without vectors of the base a file may be written, and is refused where it is read beside another.
    assert call("convert", "heads", "published", "--to", "vllm")[0] == 0
    assert "was trained for a base" in call("convert", "published", "a", "--to", "medusa", "--base", two_layers)[2]
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "a").exists()
