import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.draft.verify import noise
from jax_smash.draft.verify.noise import Purpose
from jax_smash.sampling import gumbel_noise, row_keys

place_key = jax.jit(noise.place_key, static_argnames="purpose")


def data(keys):
    return np.asarray(jax.random.key_data(keys)).reshape(-1, 2)


def test_every_row_purpose_position_and_node_has_a_key_of_its_own():
    rows, places = row_keys(range(3)), np.indices((4, 5)).reshape(2, -1)
    position, node = (jnp.tile(jnp.asarray(x, jnp.int32)[None], (3, 1)) for x in places)
    keys = [data(place_key(rows, purpose, position, node)) for purpose in Purpose]
    plain = data(jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(20)))(rows))
    together = np.concatenate([*keys, plain, data(rows)])
    assert len(np.unique(together, axis=0)) == len(together) == 3 * 3 * 20 + 3 * 20 + 3


def test_a_key_is_that_of_its_place_whatever_stands_beside_it():
    rows = row_keys([5, 6])
    position, node = jnp.array([[9, 2, 9], [0, 9, 1]]), jnp.array([[0, 0, 1], [1, 0, 3]])
    together = place_key(rows, Purpose.TRIAL, position, node)
    for row, column in np.ndindex(2, 3):
        here = (slice(row, row + 1), slice(column, column + 1))
        alone = place_key(rows[row : row + 1], Purpose.TRIAL, position[here], node[here])
        np.testing.assert_array_equal(data(alone), data(together[here]))


def test_the_noise_is_not_that_of_plain_sampling():
    rows, position = row_keys(range(50)), jnp.full((50, 1), 7, jnp.int32)
    plain = np.asarray(gumbel_noise(rows, position, 40))
    for purpose in Purpose:
        own = np.asarray(noise.gumbel(place_key(rows, purpose, position, jnp.zeros_like(position)), 40))
        assert own.shape == plain.shape
        assert abs(np.corrcoef(own.ravel(), plain.ravel())[0, 1]) < 0.1
        assert abs(own.mean() - np.euler_gamma) < 0.15
