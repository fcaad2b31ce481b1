import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints.chimera import CONFIG, WEIGHTS, load_chimera, read_chimera, save_chimera
from jax_smash.quantise import quantise_params
from tests.chimera import random_drafter
from tests.tiny import tiny_model

OTHER = {"gram_encoder": "layer", "encoder_mlp_width": 48, "residual_heads": False}


@pytest.fixture
def saved(tmp_path):
    made = random_drafter(tiny_model(), max_positions=99)
    save_chimera(tmp_path / "drafter", made.config, made.params, base_fingerprint="ab12")
    return made, tmp_path / "drafter"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"gram": 1, "gram_encoder": "residual"}, OTHER])
def test_a_drafter_comes_back_bit_for_bit(dtype, changes, tmp_path):
    made = random_drafter(tiny_model(), **changes)
    params = jax.tree.map(lambda w: w.astype(dtype), made.params)
    save_chimera(tmp_path, made.config, params)
    loaded = load_chimera(tmp_path)
    assert (loaded.config, loaded.base_fingerprint) == (made.config, "")
    before, after = jax.tree_util.tree_leaves_with_path(params), jax.tree_util.tree_leaves_with_path(loaded.params)
    assert [path for path, _ in before] == [path for path, _ in after]
    for (_, x), (_, y) in zip(before, after, strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_weights_get_the_dtype_that_is_asked_for(saved):
    loaded = load_chimera(saved[1], dtype=jnp.bfloat16)
    assert {str(x.dtype) for x in jax.tree.leaves(loaded.params)} == {"bfloat16"}


def test_the_files_hold_what_the_documentation_says(saved):
    made, folder = saved
    assert sorted(file.name for file in folder.iterdir()) == [CONFIG, WEIGHTS]
    fields = json.loads((folder / CONFIG).read_text())
    assert (fields["format"], fields["gram"], fields["gram_encoder"]) == (1, 3, "mlp")
    assert read_chimera(folder) == (made.config, fields["weights_sha256"], "ab12", None)


def damaged(folder, name):
    """Damages a folder in some way."""
    file, weights = folder / CONFIG, folder / WEIGHTS
    fields = json.loads(file.read_text())
    if name == "no description":
        file.unlink()
    elif name == "no weights":
        weights.unlink()
    elif name == "no json":
        file.write_text("{")
    elif name == "other weights":
        weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    else:
        file.write_text(json.dumps(fields | name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no description", "chimera.json is missing"),
        ("no weights", "chimera.safetensors is missing; chimera.json is there"),
        ("no json", "chimera.json is damaged: it must be JSON"),
        ("other weights", "chimera.safetensors is damaged, or was not saved with the chimera.json beside it"),
        ({"format": 7}, "must have format 1; got 7"),
        ({"weights_sha256": None}, "weights_sha256 must be a text; got None"),
        ({"base_fingerprint": 3}, "base_fingerprint must be a text; got 3"),
        ({"gram": 9}, "chimera.json: gram must be from 1 to 5 tokens; got 9"),
        ({"depth": 1}, "chimera.json: unknown field 'depth'"),
        ({"gram": 2}, r"grams.w_in must be \[64, 32\], got \[96, 32\]"),
        ({"gram_encoder": "residual"}, r"missing: grams.block.b \[96\], grams.block.w \[96, 96\]"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(damage, said, saved):
    damaged(saved[1], damage)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load_chimera(saved[1])


def test_weights_that_cannot_be_kept_are_refused_and_nothing_is_written(saved, tmp_path):
    made, _ = saved
    target = tmp_path / "new"
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        save_chimera(target, made.config, quantise_params(made.params))
    broken = jax.tree.map(lambda w: w if w.ndim < 2 else w * jnp.float32(jnp.nan), made.params)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        save_chimera(target, made.config, broken)
    with pytest.raises(ValueError, match="the tensors in memory do not fit its configuration"):
        save_chimera(target, random_drafter(tiny_model(), gram=1).config, made.params)
    assert not target.exists()
