import copy
import gc
import pickle
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.loading.kept import Kept


@pytest.fixture
def weights():
    return {"layer": jnp.ones(3), "host": np.ones(2), "scale": 2.0}


def made_of(kept, weights, key="a", name="drafter"):
    """Returns a new object, or the one that is kept."""
    return kept.get(name, key, weights, object)


def test_the_same_key_and_weights_give_the_same(weights):
    kept = Kept()
    first = made_of(kept, weights)
    assert made_of(kept, dict(weights)) is first
    assert made_of(kept, weights, name="other") is not first
    assert made_of(kept, weights) is first


@pytest.mark.parametrize("name", ["layer", "host"])
def test_other_weights_of_the_same_values_give_another(weights, name):
    kept = Kept()
    first = made_of(kept, weights)
    weights[name] = weights[name] + 0
    assert made_of(kept, weights) is not first


def test_fewer_weights_give_another(weights):
    kept = Kept()
    first = made_of(kept, weights)
    del weights["host"]
    assert made_of(kept, weights) is not first


def test_another_key_takes_the_place_of_what_was_kept(weights):
    kept = Kept()
    first = weakref.ref(made := kept.get("drafter", "a", weights, set))
    del made
    assert first() is not None
    made_of(kept, weights, key="b")
    gc.collect()
    assert first() is None


def test_nothing_is_kept_of_what_failed(weights):
    kept = Kept()
    with pytest.raises(ZeroDivisionError):
        kept.get("drafter", "a", weights, lambda: 1 / 0)
    assert kept.get("drafter", "a", weights, lambda: 1) == 1


def test_weights_are_not_kept_alive(weights):
    kept, gone = Kept(), weakref.ref(weights["layer"])
    made_of(kept, weights)
    weights.clear()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda kept: pickle.loads(pickle.dumps(kept))])
def test_a_copy_begins_empty(weights, copied):
    kept = Kept()
    first = made_of(kept, weights)
    assert made_of(copied(kept), weights) is not first
