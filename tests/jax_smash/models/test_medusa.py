"""Heads that share the target's rows read these once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from tests.medusa import random_heads
from tests.tiny import tiny_model

ASKED = {
    "unembed": lambda heads, vectors, target: heads.unembed(vectors, target),
    "likeliest": lambda heads, vectors, target: heads.likeliest(vectors, 3, target),
}


def products(jaxpr, shape):
    """Returns how many products, of all branches, have an operand of this shape."""
    found = 0
    for equation in jaxpr.eqns:
        found += equation.primitive.name == "dot_general" and any(v.aval.shape == shape for v in equation.invars)
        for value in jax.tree.leaves(
            tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
        ):
            if isinstance(value, Jaxpr | ClosedJaxpr):
                found += products(getattr(value, "jaxpr", value), shape)
    return found


def products_of(asked, **changes):
    """Returns how many products with a table of rows the heads' program has."""
    model = tiny_model(layer_kinds=("full", "full"))
    made = random_heads(model, **changes)
    shape = (model.config.vocab_size, model.config.d_model)

    def of(params, hidden):
        heads = made.definition.bind(params[0])
        vectors = heads.vectors(hidden)
        return ASKED[asked](heads, vectors, model.definition.bind(params[1]))

    arguments = (made.params, model.params["target"]), jnp.ones((2, 1, model.config.d_model))
    return products(jax.make_jaxpr(of)(*arguments).jaxpr, shape)


@pytest.mark.parametrize("asked", ASKED)
def test_heads_that_share_the_targets_rows_read_them_once(asked):
    one, three = (products_of(asked, own_rows=False, num_heads=n) for n in (1, 3))
    assert three == one > 0
    # The control: rows of their own are read by each.
    assert products_of(asked, num_heads=3) == 3 * products_of(asked, num_heads=1)


def test_what_shared_rows_say_is_what_they_say_to_each_head():
    model = tiny_model(layer_kinds=("full", "full"))
    made = random_heads(model, own_rows=False, num_heads=3)
    heads, target = made.definition.bind(made.params), model.definition.bind(model.params["target"])
    vectors = heads.vectors(jax.random.normal(jax.random.key(0), (2, 1, model.config.d_model)))
    alone = jnp.stack([target.unembed(x) for x in vectors])
    np.testing.assert_allclose(heads.unembed(vectors, target), alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(heads.likeliest(vectors, 3, target)[1], jax.lax.top_k(alone, 3)[1])
