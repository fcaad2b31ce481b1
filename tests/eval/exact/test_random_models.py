import numpy as np
import pytest

from eval.exact.random_models import FAMILIES, random_fields
from jax_smash.models.families import from_hf


@pytest.mark.parametrize("family", FAMILIES)
def test_every_draw_of_a_family_is_a_configuration_that_the_library_reads(family):
    configs = [from_hf(random_fields(family, np.random.default_rng(seed))) for seed in range(40)]
    assert {c.family for c in configs} == {family}
    # Draws differ in what matters: sizes, grouping, and ties.
    assert len(set(configs)) > 30
    assert {c.tied_head for c in configs} == {True, False}
    assert len({c.num_heads // c.num_kv_heads for c in configs}) > 1


def test_windows_ropes_biases_and_softcaps_all_occur():
    configs = [from_hf(random_fields(f, np.random.default_rng(seed))) for f in FAMILIES for seed in range(40)]
    assert {c.rope.scaling for c in configs} == {"none", "linear", "llama3", "yarn", "longrope", "dynamic"}
    assert {kind for c in configs for kind in c.layer_kinds} == {"full", "sliding"}
    for switch in (
        "qkv_bias",
        "mlp_bias",
        "qk_norm",
        "post_norms",
        "joint_qk_norm",
        "late_rounding",
        "unrotated_layers",
        "norm_offset",
        "attention_softcap",
        "final_softcap",
    ):
        assert any(getattr(c, switch) for c in configs), switch
    assert {c.pre_norms for c in configs} == {True, False}
    for scale in ("embedding_scale", "residual_scale", "logits_divisor"):
        assert len({getattr(c, scale) for c in configs}) > 1, scale
    assert {c.rope.partial for c in configs} == {1.0, 0.75}


def test_a_seed_gives_the_same_configuration_again():
    assert random_fields("llama", np.random.default_rng(3)) == random_fields("llama", np.random.default_rng(3))


def test_an_unknown_family_is_named():
    with pytest.raises(ValueError, match=r"family must be one of llama, .*; got 'gpt2'"):
        random_fields("gpt2", np.random.default_rng(0))
