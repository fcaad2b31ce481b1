import jax
import numpy as np
import pytest

from pallas_kernels.tree_attention import kernel_here, tree_attention
from pallas_kernels.tree_attention.cases import TESTS, make
from tests.kernels import attended

CASE = TESTS[1]
INPUTS = make(CASE)


@pytest.mark.parametrize("implementation", [None, "kernel"])
def test_a_cpu_gets_the_xla_path(implementation):
    assert kernel_here(INPUTS) is None
    np.testing.assert_array_equal(attended(INPUTS, CASE, implementation), attended(INPUTS, CASE, "xla"))


def test_the_default_has_no_kernel_in_it():
    jaxpr = jax.make_jaxpr(lambda inputs: tree_attention(inputs, scale=1.0))(INPUTS)
    assert "pallas_call" not in str(jaxpr)
    assert "pallas_call" in str(
        jax.make_jaxpr(lambda inputs: tree_attention(inputs, scale=1.0, implementation="kernel"))(INPUTS)
    )


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match=r"implementation must be one of kernel, xla, .*; got 'fast'"):
        attended(INPUTS, CASE, "fast")


def test_only_a_kernel_can_be_interpreted():
    with pytest.raises(ValueError, match="only implementation tpu or gpu can be interpreted; got 'xla'"):
        tree_attention(INPUTS, scale=1.0, implementation="xla", interpret=True)
