import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.methods import make_method
from jax_smash.pytree import pytree, shown, size, static
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.smashed import smashed_model
from tests.tiny import tiny_model


@pytree
class Pair:
    first: jax.Array
    second: tuple
    name: str = static()


def test_a_repr_names_arrays_and_prints_none():
    pair = Pair(first=jnp.zeros((3, 4)), second=(np.ones(2, np.int8), None), name="x")
    assert repr(pair) == "Pair(first=float32[3,4], second=(int8[2], None), name='x')"
    assert shown({"a": [jnp.zeros(())], "b": 1}) == "{'a': [float32[]], 'b': 1}"
    assert shown(list(range(100))) == "list of 100"


def test_the_repr_of_what_a_user_holds_is_short():
    """Though its arrays would print as many kilobytes."""
    model = smashed_model()
    method = make_method(model, "recycling")
    session = Session(model, method, slots=64, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0])
    for thing in (model, model.modules, model.definition, method, session):
        assert len(repr(thing)) < 200, repr(thing)[:200]
    assert len(repr(session.state)) < 4000
    assert len(repr(method.memory)) < 800


def test_the_repr_of_a_model_says_what_it_is():
    model = tiny_model()
    weights = sum(x.size for x in jax.tree.leaves(model.params))
    assert repr(model) == f"Model('two-layer'; llama; {weights / 1000:.1f}k float32, {weights * 4 / 1000:.1f} kB)"
    bare = dataclasses.replace(model, tokenizer=None)
    assert "no tokenizer" in repr(bare)


def test_sizes_count_numbers_and_bytes_of_every_dtype():
    tree = {"w": jnp.zeros((1000, 3000), jnp.int8), "scale": jnp.zeros((1000,), jnp.float32)}
    assert size(tree) == "3.0M int8 and float32, 3.0 MB"
    assert size({}) == "no arrays"
