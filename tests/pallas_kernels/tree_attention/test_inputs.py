import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_attention import causal_words, tree_attention
from pallas_kernels.tree_attention.cases import TESTS, make, pack

INPUTS = make(TESTS[1])


@pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 129])
def test_causal_words_are_a_triangle(width):
    words = jax.jit(causal_words, static_argnums=0)(width)
    np.testing.assert_array_equal(words, pack(np.tril(np.ones((width, width), bool))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"key": INPUTS.key[:, :3]},
            r"key must be \(2, 7, 2, 64\) beside a query of \(2, 7, 4, 64\); got \(2, 3, 2, 64\)",
        ),
        ({"query": INPUTS.query[0]}, r"query must have 4 axes; got \(7, 4, 64\)"),
        ({"keys": INPUTS.keys[..., None]}, r"keys must have 4 axes; got \(2, 2, 96, 64, 1\)"),
        ({"values": INPUTS.values[:, :, :9]}, r"values must be \(2, 2, 96, 64\)"),
        ({"slot_position": INPUTS.slot_position[:1]}, r"slot_position must be \(2, 96\)"),
        ({"valid": INPUTS.valid[:, 1:]}, r"valid must be \(2, 7\)"),
        ({"query": INPUTS.query[:, :, :3]}, "multiple of the 2 KV heads, over entries; got 3"),
        ({"ancestors": INPUTS.ancestors[:, :, :0]}, r"ancestors must be \(2, 7, words\) with a bit an entry"),
        ({"key": INPUTS.key.astype(jnp.bfloat16)}, "key must be float32; got bfloat16"),
        ({"keys": INPUTS.keys.astype(jnp.int8)}, "keys must be float32; got int8"),
        ({"position": INPUTS.position.astype(jnp.int16)}, "position must be int32; got int16"),
        ({"ancestors": INPUTS.ancestors.astype(jnp.int32)}, "ancestors must be uint32; got int32"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_plainly(INPUTS._replace(**changes))


def check_plainly(inputs):
    from pallas_kernels.tree_attention.inputs import Options, check

    check(inputs, Options(scale=1.0))


@pytest.mark.parametrize("options", [{"window": -1}, {"softcap": -1.0}])
def test_an_option_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match="window and softcap must be at least 0"):
        tree_attention(INPUTS, scale=1.0, **options)
