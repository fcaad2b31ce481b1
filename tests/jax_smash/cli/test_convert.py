"""`jax-smash convert`."""

import os

from safetensors.numpy import load_file


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
