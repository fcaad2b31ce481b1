"""Hugging Face checkpoints, read and written."""

import dataclasses
import json
import shutil
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open

from jax_smash.checkpoints.huggingface import load_params, read_config, resolve, save_params
from jax_smash.models.transformer import abstract_params
from tests.checkpoints import CONFIGS, GEMMA3, LARGE, LLAMA, write_checkpoint, write_large_checkpoint, write_tensors
from tests.interpreter import PEAK, needs_proc, run


def stored(directory):
    """Returns all tensors in a directory's safetensors files, as the package of that name reads them."""
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return tensors


def assert_same_tensors(one, other):
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert tensor.shape == other[name].shape, name
        assert tensor.tobytes() == other[name].tobytes(), name


def flat(params):
    return {path: np.asarray(v.get_value()) for path, v in nnx.to_flat_state(params)}


@pytest.fixture
def llama(tmp_path):
    """A small Llama checkpoint; gives its directory and its tensors."""
    directory = tmp_path / "llama"
    return directory, write_checkpoint(directory, LLAMA)


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, "F32") for name in CONFIGS] + [("llama", "BF16"), ("gemma2", "F16")]
)
def test_a_checkpoint_comes_back_bit_by_bit(name, dtype, tmp_path):
    tensors = write_checkpoint(tmp_path / "in", CONFIGS[name], dtype=dtype)
    config, raw = read_config(tmp_path / "in")
    _, params = load_params(tmp_path / "in", config)
    save_params(tmp_path / "out", config, params, original_config=raw)
    assert_same_tensors(stored(tmp_path / "out"), tensors)
    saved, kept = read_config(tmp_path / "out")
    assert saved == config
    assert raw.items() <= kept.items()
    assert kept["dtype"] == {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]


def test_shards_make_no_difference(tmp_path):
    tensors = write_checkpoint(tmp_path / "in", LLAMA, shards=3)
    write_checkpoint(tmp_path / "single", LLAMA)
    config, _ = read_config(tmp_path / "in")
    _, params = load_params(tmp_path / "in")
    _, single = load_params(tmp_path / "single")
    jax.tree.map(np.testing.assert_array_equal, params, single)
    save_params(tmp_path / "out", config, params, max_shard_bytes=60_000)
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all((tmp_path / "out" / file).stat().st_size < 70_000 for file in files)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "out" / file, framework="numpy") as opened:
            assert name in opened.keys()  # noqa: SIM118
    assert_same_tensors(stored(tmp_path / "out"), tensors)
    jax.tree.map(np.testing.assert_array_equal, params, load_params(tmp_path / "out")[1])


@pytest.mark.parametrize("name", ["llama-3-tied", "qwen2", "gemma3"])
def test_transformers_loads_what_we_save_and_we_what_it_saves(name, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model (extra `peers`)")
    from transformers import AutoModelForCausalLM

    def logits(model):
        with torch.no_grad():
            return model(torch.arange(40)[None]).logits.numpy()

    write_checkpoint(tmp_path / "in", CONFIGS[name])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs")
    config, _ = read_config(tmp_path / "theirs")
    _, params = load_params(tmp_path / "theirs")
    save_params(tmp_path / "ours", config, params)  # Without the original, so that config.json is made anew.
    assert_same_tensors(stored(tmp_path / "ours"), stored(tmp_path / "theirs"))
    again, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    np.testing.assert_array_equal(logits(again), logits(theirs))


def test_a_multimodal_gemma_gives_its_text_model(tmp_path):
    tensors = write_checkpoint(tmp_path / "text", GEMMA3)
    (tmp_path / "both").mkdir()
    raw = {"model_type": "gemma3", "text_config": {k: v for k, v in GEMMA3.items() if k != "architectures"}}
    (tmp_path / "both" / "config.json").write_text(json.dumps(raw))
    vision = {"vision_tower.weight": np.ones((3,), np.float32), "multi_modal_projector.w": np.ones((2,), np.float32)}
    write_tensors(tmp_path / "both", {f"language_model.{name}": t for name, t in tensors.items()} | vision)
    config, original = read_config(tmp_path / "both")
    _, params = load_params(tmp_path / "both")
    jax.tree.map(np.testing.assert_array_equal, params, load_params(tmp_path / "text")[1])
    save_params(tmp_path / "out", config, params, original_config=original)
    assert_same_tensors(stored(tmp_path / "out"), tensors)
    assert read_config(tmp_path / "out")[0] == config


def test_weights_are_cast_as_they_are_read(llama):
    directory, _ = llama
    _, exact = load_params(directory)
    graphdef, params = load_params(directory, dtype=jnp.bfloat16)
    for path, array in flat(params).items():
        assert array.dtype == jnp.bfloat16
        np.testing.assert_array_equal(array, flat(exact)[path].astype(jnp.bfloat16))
    assert graphdef == abstract_params(read_config(directory)[0], jnp.bfloat16)[0]


def test_place_puts_every_parameter_where_it_likes(llama):
    directory, _ = llama
    device = jax.devices()[-1]
    placed, steps = [], []

    def place(path, array):
        placed.append(path)
        return jax.device_put(array, device)

    _, params = load_params(directory, place=place, progress=lambda done, all_: steps.append((done, all_)))
    assert sorted(map(str, placed)) == sorted(map(str, flat(params)))
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(params))
    assert steps == [(i + 1, len(placed)) for i in range(len(placed))]


def test_a_second_copy_of_a_tied_head_is_passed_over_if_it_is_one(tmp_path):
    raw = CONFIGS["llama-3-tied"]
    tensors = write_checkpoint(tmp_path, raw)
    write_tensors(tmp_path, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    _, params = load_params(tmp_path)
    assert ("head",) not in flat(params)
    write_tensors(tmp_path, tensors | {"lm_head.weight": -tensors["model.embed_tokens.weight"]})
    with pytest.raises(ValueError, match=r"lm_head.weight in .* must equal model.embed_tokens.weight"):
        load_params(tmp_path)


def test_saved_rotary_frequencies_are_passed_over(llama):
    directory, tensors = llama
    _, without = load_params(directory)
    write_tensors(directory, tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones((8,), np.float32)})
    _, beside = load_params(directory)
    jax.tree.map(np.testing.assert_array_equal, beside, without)


def test_all_tensors_that_do_not_fit_are_listed_at_once(llama):
    directory, tensors = llama
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.ones((63, 64), np.float32)
    tensors["model.layers.7.mlp.up_proj.weight"] = np.ones((2, 3), np.float32)
    write_tensors(directory, tensors)
    with pytest.raises(ValueError, match=r"do not fit its configuration") as caught:
        load_params(directory)
    message = str(caught.value)
    assert "missing: model.norm.weight [64]" in message
    assert "unexpected: model.layers.7.mlp.up_proj.weight [2, 3]" in message
    assert "of another shape: model.layers.0.self_attn.q_proj.weight must be [64, 64], got [63, 64]" in message
    assert "\n" not in message


def test_a_long_list_of_misfits_is_counted(llama):
    directory, tensors = llama
    write_tensors(directory, {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(ValueError, match=r"missing: .* and 12 more$"):
        load_params(directory)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_weight_that_is_no_number_is_found(bad, dtype, tmp_path):
    tensors = write_checkpoint(tmp_path, LLAMA, dtype=dtype)
    tensors["model.layers.1.mlp.up_proj.weight"][95, 63] = bad
    write_tensors(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.up_proj.weight in .* holds NaN or infinity"):
        load_params(tmp_path)


def test_a_weight_too_large_for_the_dtype_is_found(llama):
    directory, tensors = llama
    tensors["lm_head.weight"][3, 3] = 1e6
    write_tensors(directory, tensors)
    load_params(directory, dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match=r"lm_head.weight in .* holds values that float16 cannot hold"):
        load_params(directory, dtype=jnp.float16)


def test_mixed_dtypes_need_a_choice(llama):
    directory, tensors = llama
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(jnp.bfloat16)
    write_tensors(directory, tensors)
    with pytest.raises(ValueError, match=r"differ in dtype \(model.norm.weight bfloat16, .* float32\)"):
        load_params(directory)
    load_params(directory, dtype=jnp.float32)


def test_packed_weights_and_odd_dtypes_are_refused(llama):
    directory, tensors = llama
    with pytest.raises(ValueError, match=r"dtype of weights must be one of bfloat16, float16, float32; got int8"):
        load_params(directory, dtype=jnp.int8)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.int8)
    write_tensors(directory, tensors)
    with pytest.raises(ValueError, match=r"lm_head.weight in .* has dtype I8; supported"):
        load_params(directory)


@pytest.mark.parametrize("keep", [0, 5, 2000, -1])
def test_a_half_written_file_is_named(llama, keep):
    directory, _ = llama
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or incomplete"):
        load_params(directory)


def test_a_missing_shard_is_named(tmp_path):
    write_checkpoint(tmp_path, LLAMA, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00003.safetensors is missing; .*index.json names it"):
        load_params(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {"a": "../model.safetensors"}}'])
def test_a_damaged_index_is_named(index, tmp_path):
    write_checkpoint(tmp_path, LLAMA)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"model.safetensors.index.json (is damaged|must name files beside it)"):
        load_params(tmp_path)


def test_pickled_weights_are_refused(llama):
    directory, _ = llama
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model.bin: pickled weights can run code"):
        load_params(directory)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors$"):
        load_params(directory)


def test_a_directory_without_or_with_a_damaged_configuration_is_named(llama):
    directory, _ = llama
    file = directory / "config.json"
    file.write_text('{"model_type": "mamba"}')
    with pytest.raises(ValueError, match=r"config.json: model_type 'mamba' is not supported"):
        read_config(directory)
    file.write_text("{'model_type'}")
    with pytest.raises(ValueError, match=r"config.json is damaged: it must be JSON"):
        read_config(directory)
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"config.json must hold a JSON object; got list"):
        read_config(directory)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"config.json is missing"):
        read_config(directory)


def test_a_name_that_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no model 'nowhere': it is neither a directory, a .gguf file nor a hub id"
    ):
        resolve("nowhere")
    with pytest.raises(FileNotFoundError, match=r"is neither a directory, a .gguf file nor a hub id"):
        resolve(tmp_path / "a" / "b")
    (tmp_path / "file.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"file.txt is a file; a checkpoint is a directory"):
        resolve(tmp_path / "file.txt")


def test_a_hub_id_without_a_network_is_one_clear_error(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no directory owner/model, and the hub gave no model") as caught:
        resolve("owner/model")
    assert "\n" not in str(caught.value)


def test_a_hub_id_that_was_fetched_before_needs_no_network(monkeypatch, llama, tmp_path):
    from huggingface_hub import constants

    directory, _ = llama
    revision = "0123456789abcdef" * 2 + "01234567"
    repository = tmp_path / "models--owner--model"
    shutil.copytree(directory, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolve("owner/model") == repository / "snapshots" / revision
    assert read_config("owner/model") == read_config(directory)
    with pytest.raises(FileNotFoundError, match="no directory owner/other"):
        resolve("owner/other")


def test_nothing_is_written_over(llama, tmp_path):
    directory, _ = llama
    config, _ = read_config(directory)
    _, params = load_params(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(FileExistsError, match=r"must be a new or empty directory; it has files in it"):
        save_params(directory, config, params)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    (tmp_path / "empty").mkdir()
    save_params(tmp_path / "empty", config, params)
    assert read_config(tmp_path / "empty")[0] == config


def test_parameters_of_another_model_are_not_saved(llama, tmp_path):
    directory, _ = llama
    config, _ = read_config(directory)
    _, params = load_params(directory)
    with pytest.raises(ValueError, match=r"tensors in params do not fit .* layers.0.mlp.w_down must be \[100, 64\]"):
        save_params(tmp_path / "out", dataclasses.replace(config, mlp_width=100), params)
    packed = jax.tree.map(lambda w: w.astype(jnp.int8), params)
    with pytest.raises(ValueError, match=r"embedding must be one of bfloat16, float16, float32; got int8"):
        save_params(tmp_path / "out", config, packed)
    del params["final_norm"]
    with pytest.raises(ValueError, match=r"missing: final_norm.scale \[64\]"):
        save_params(tmp_path / "out", config, params)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama"]


@needs_proc
def test_memory_holds_one_copy_of_the_weights(tmp_path):
    size = write_large_checkpoint(tmp_path, LARGE)
    assert size > 190e6
    script = """
    import sys
    from jax_smash.checkpoints.huggingface import load_params, read_config, save_params

    config, raw = read_config(sys.argv[1])
    base = peak()
    _, params = load_params(sys.argv[1])
    loaded = peak()
    save_params(sys.argv[1] + "/out", config, params, original_config=raw)
    print(loaded - base, peak() - base)
    """
    loaded, saved = map(int, run(PEAK + textwrap.dedent(script), tmp_path).split())
    assert 0.9 * size < loaded < 1.2 * size
    assert saved < 1.2 * size


def test_a_disk_that_fills_up_leaves_nothing_behind(llama, tmp_path):
    directory, _ = llama
    (tmp_path / "out").mkdir()
    output = run(
        """
        import resource, sys
        from jax_smash.checkpoints.huggingface import load_params, read_config, save_params

        config, raw = read_config(sys.argv[1])
        _, params = load_params(sys.argv[1])
        sys.dont_write_bytecode = True  # A module first imported below would be cached cut short.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save_params(sys.argv[2], config, params)
        except OSError as error:
            print(error)
        """,
        directory,
        tmp_path / "out",
    )
    assert "no room to save" in output
    assert str(tmp_path / "out") in output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama", "out"]
    assert not list((tmp_path / "out").iterdir())
