import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.decode.programs import Programs
from jax_smash.platform import tracing_for


def test_a_program_is_kept_for_each_setting_that_changes_what_is_computed():
    square, programs, x = jax.jit(lambda strategy, x: x @ x, static_argnums=0), Programs(), jnp.ones((4, 4))

    def compiled():
        np.testing.assert_array_equal(programs.call(square, None, x), np.full((4, 4), 4.0))
        return programs.compiled

    assert [compiled(), compiled()] == [1, 1]
    with jax.default_matmul_precision("tensorfloat32"):
        assert [compiled(), compiled()] == [2, 2]
    with tracing_for("tpu"):  # What is traced may depend on the platform; the device is the same.
        assert [compiled(), compiled()] == [3, 3]
    assert compiled() == 3
