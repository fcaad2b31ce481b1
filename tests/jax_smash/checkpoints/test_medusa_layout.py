"""Medusa's heads as their authors and vLLM name their tensors."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_smash.checkpoints.fit import dotted
from jax_smash.checkpoints.medusa import MedusaModules
from jax_smash.checkpoints.medusa_layout import CONFIG, FILES, PICKLED, SHARED, export_medusa, import_medusa
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import MedusaConfig, random_medusa
from tests.tiny import tiny_config

TARGET = tiny_config()
D, V = TARGET.d_model, TARGET.vocab_size
ROWS = np.random.default_rng(1).normal(size=(V, D)).astype(np.float32)
HEADS = 3


def heads(dtype=jnp.float32, **changes):
    """Returns random heads whose blocks differ from each other."""
    config = MedusaConfig(V, D, num_heads=HEADS, **changes)
    graphdef, params = random_medusa(config, 3, dtype)
    rng = np.random.default_rng(0)
    leaves = [(path, v.replace(jnp.asarray(rng.normal(size=v.shape), dtype))) for path, v in nnx.to_flat_state(params)]
    params = nnx.from_flat_state(leaves)
    return MedusaModules(config, NnxModel(graphdef), params, base_fingerprint="ab", trained_length=64)


def written(folder, layout, made=None):
    export_medusa(folder, made or heads(), layout, rows=lambda: ROWS, base="owner/target")
    return folder


def change(folder, layout, fields=None, tensors=None, drop=()):
    """Changes a published folder's fields and tensors."""
    raw = json.loads((folder / CONFIG).read_text()) | (fields or {})
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in raw.items() if value != "absent"}))
    file = folder / FILES[layout]
    save_file({name: x for name, x in load_file(file).items() if name not in drop} | (tensors or {}), file)


def flat(modules):
    return {dotted(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(modules.params)}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize("changes", [{}, {"blocks": 2}, {"own_rows": False}, {"blocks": 0}])
def test_heads_come_back_bit_for_bit(tmp_path, dtype, layout, changes):
    made = heads(dtype, **changes)
    found = import_medusa(written(tmp_path / "published", layout, made), TARGET, rows=lambda: ROWS)
    assert (found.config, found.base_fingerprint, found.trained_length) == (made.config, "ab", 64)
    for name, array in flat(made).items():
        assert array.tobytes() == flat(found)[name].tobytes(), name


def test_the_authors_layout_has_their_names(tmp_path):
    tensors = load_file(written(tmp_path / "published", "authors") / FILES["authors"])
    each = {"0.linear.weight": (D, D), "0.linear.bias": (D,), "1.weight": (V, D)}
    assert {name: x.shape for name, x in tensors.items()} == {
        f"{n}.{name}": shape for n in range(HEADS) for name, shape in each.items()
    }
    raw = json.loads((tmp_path / "published" / CONFIG).read_text())
    told = raw["medusa_num_heads"], raw["medusa_num_layers"], raw["base_model_name_or_path"]
    assert told == (HEADS, 1, "owner/target")


def test_vllms_layout_has_what_its_loader_would_skip_without(tmp_path):
    tensors = load_file(written(tmp_path / "published", "vllm") / FILES["vllm"])
    each = {"blocks.{}.layers.0.weight", "blocks.{}.layers.0.bias", "lm_heads.{}.weight"}
    assert {*tensors} == {name.format(n) for n in range(HEADS) for name in each}
    raw = json.loads((tmp_path / "published" / CONFIG).read_text())
    assert (raw["medusa_fc_bias"], raw["original_lm_head"], raw["truncated_vocab_size"]) == (True, False, V)
    shared = written(tmp_path / "shared", "vllm", heads(own_rows=False))
    assert json.loads((shared / CONFIG).read_text())["original_lm_head"] is True
    np.testing.assert_array_equal(load_file(shared / FILES["vllm"])[SHARED], ROWS)


@pytest.mark.parametrize("layout", FILES)
def test_imported_weights_compute_what_the_names_say(tmp_path, layout):
    folder = written(tmp_path / "published", layout)
    tensors = {name: x.astype(np.float64) for name, x in load_file(folder / FILES[layout]).items()}
    found = import_medusa(folder, TARGET)
    hidden = np.random.default_rng(2).normal(size=(1, 4, D)).astype(np.float32)
    bound = found.definition.bind(found.params)
    logits = np.asarray(bound.unembed(bound.vectors(jnp.asarray(hidden)), None))
    for n in range(HEADS):
        block, rows = {"authors": (f"{n}.0.linear", f"{n}.1"), "vllm": (f"blocks.{n}.layers.0", f"lm_heads.{n}")}[
            layout
        ]
        inner = hidden @ tensors[f"{block}.weight"].T + tensors[f"{block}.bias"]
        expected = (hidden + inner / (1 + np.exp(-inner))) @ tensors[f"{rows}.weight"].T
        np.testing.assert_allclose(logits[n], expected, rtol=1e-4, atol=1e-4)


def test_names_behind_the_training_wrapper_and_blocks_without_biases_are_read(tmp_path):
    folder = written(tmp_path / "published", "vllm")
    file = folder / FILES["vllm"]
    save_file({f"medusa_heads.{n}": x for n, x in load_file(file).items() if not n.endswith(".bias")}, file)
    with pytest.raises(ValueError, match="medusa_fc_bias is True, but biases are not there"):
        import_medusa(folder, TARGET)
    change(folder, "vllm", {"medusa_fc_bias": False})
    found = flat(import_medusa(folder, TARGET))
    assert all(not x.any() for name, x in found.items() if name.endswith(".b"))
    np.testing.assert_array_equal(found["heads.1.head"], flat(heads())["heads.1.head"])


def test_authors_heads_are_counted_where_their_file_tells_of_fewer(tmp_path):
    folder = written(tmp_path / "published", "authors")
    change(folder, "authors", {"medusa_num_heads": 2})
    assert import_medusa(folder, TARGET).config.num_heads == HEADS
    # Heads that their file tells of and does not hold are missing.
    change(folder, "authors", {"medusa_num_heads": HEADS + 1})
    with pytest.raises(ValueError, match=rf"{HEADS}\.0\.linear"):
        import_medusa(folder, TARGET)


BAD = {
    "missing": ({"drop": ["blocks.1.layers.0.weight"]}, r"blocks\.1\.layers\.0\.weight"),
    "unexpected": ({"tensors": {"blocks.7.layers.0.weight": np.zeros((D, D), np.float32)}}, r"blocks\.7\.layers"),
    "shape": ({"tensors": {"lm_heads.0.weight": np.zeros((V, D + 1), np.float32)}}, r"lm_heads\.0\.weight"),
    "twice": (
        {"tensors": {"medusa_heads.lm_heads.0.weight": np.zeros((V, D), np.float32)}},
        "holds a tensor under two names",
    ),
    "nan": ({"tensors": {"lm_heads.0.weight": np.full((V, D), np.nan, np.float32)}}, "NaN"),
    "width": ({"fields": {"hidden_size": 9}}, "heads have a width of 9; the target's is"),
    "vocabulary": ({"fields": {"truncated_vocab_size": 5}}, "have a truncated vocabulary of 5; the target's is"),
    "map": ({"tensors": {"token_map": np.arange(3)}}, "heads with a token_map"),
    "heads": ({"fields": {"num_heads": "absent"}}, "num_heads must be a whole number; got None"),
    "own and shared rows": ({"tensors": {SHARED: ROWS}}, r"unexpected: lm_head\.weight"),
    "no rows": ({"drop": [f"lm_heads.{n}.weight" for n in range(HEADS)]}, r"missing: lm_heads\.0\.weight"),
    "shared rows untold": (
        {"drop": [f"lm_heads.{n}.weight" for n in range(HEADS)], "tensors": {SHARED: ROWS}},
        r"missing: lm_heads\.0\.weight",
    ),
    "rows told of as shared": ({"fields": {"original_lm_head": True}}, r"missing: lm_head\.weight"),
    "flag": ({"fields": {"original_lm_head": 1}}, "original_lm_head must be true or false; got 1"),
}

BAD_SHARED = {
    "others": ({"tensors": {SHARED: ROWS + 1}}, "must be the target's rows"),
    "none": ({"drop": [SHARED]}, r"missing: lm_head\.weight"),
    "own": ({"tensors": {"lm_heads.0.weight": ROWS}}, r"unexpected: lm_heads\.0\.weight"),
    "untold": ({"fields": {"original_lm_head": "absent"}}, r"missing: lm_heads\.0\.weight"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(tmp_path, case):
    changes, said = BAD[case]
    folder = written(tmp_path / "published", "vllm")
    change(folder, "vllm", **changes)
    with pytest.raises(ValueError, match=said):
        import_medusa(folder, TARGET, rows=lambda: ROWS)


@pytest.mark.parametrize("case", BAD_SHARED)
def test_shared_rows_that_do_not_fit_are_refused(tmp_path, case):
    changes, said = BAD_SHARED[case]
    folder = written(tmp_path / "published", "vllm", heads(own_rows=False))
    change(folder, "vllm", **changes)
    with pytest.raises(ValueError, match=said):
        import_medusa(folder, TARGET, rows=lambda: ROWS)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    folder = written(tmp_path / "published", "authors")
    (folder / FILES["authors"]).rename(folder / PICKLED)
    with pytest.raises(ValueError, match=r"pickled: reading it can run code.*torch\.load\('medusa_lm_head\.pt'"):
        import_medusa(folder, TARGET)
    (folder / PICKLED).unlink()
    with pytest.raises(FileNotFoundError, match="has neither"):
        import_medusa(folder, TARGET)


def test_what_a_layout_needs_of_the_target_must_be_given(tmp_path):
    with pytest.raises(ValueError, match="need the target's for vLLM; got no base"):
        export_medusa(tmp_path / "a", heads(own_rows=False), "vllm")
    with pytest.raises(ValueError, match="names the target that it is loaded with; got no base"):
        export_medusa(tmp_path / "a", heads(), "authors")
    assert not (tmp_path / "a").exists()
