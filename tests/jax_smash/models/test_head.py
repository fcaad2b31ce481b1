import jax
import numpy as np
import pytest
from flax import nnx

from jax_smash.models import head
from jax_smash.models.transformer import random_params
from jax_smash.quantise import quantise_params
from jax_smash.sampling import likeliest_of
from jax_smash.sharding import make_mesh, on_mesh, place
from tests.tiny import tiny_config


def model(**options):
    return random_params(tiny_config(vocab_size=256, **options))


def found(structure, params, hidden, n):
    def find(params, hidden):
        return structure_model(structure, params).likeliest(hidden, n, total=True)

    return jax.jit(find)(params, hidden)


def structure_model(structure, params):
    return nnx.merge(structure, params)


HIDDEN = jax.random.normal(jax.random.key(1), (2, 3, tiny_config().d_model))


def expected(structure, params, n):
    return likeliest_of(structure_model(structure, params).unembed(HIDDEN), n, total=True)


def agree(got, wanted):
    np.testing.assert_array_equal(got.tokens, wanted.tokens)
    np.testing.assert_allclose(got.values, wanted.values, atol=1e-5)
    np.testing.assert_allclose(got.total, wanted.total, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"final_softcap": 0.1}, {"logits_divisor": 4.0}, {"tied_head": True}])
@pytest.mark.parametrize("weights", ["plain", "int8"])
def test_pieces_of_the_head_find_what_all_logits_have(monkeypatch, options, weights):
    structure, params = model(**options)
    if weights == "int8":
        params = quantise_params(params)
    wanted = expected(structure, params, 4)
    agree(found(structure, params, HIDDEN, 4), wanted)
    # As on other platforms than a CPU.
    monkeypatch.setattr(head, "piece_size", lambda vocab_size, rows: 96)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    agree(found(structure, params, HIDDEN, 4), wanted)


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "data=2,tp=2", "fsdp=2,tp=2"])
def test_each_device_looks_among_its_own_tokens(mesh):
    structure, params = model()
    wanted, mesh = expected(structure, params, 4), make_mesh(mesh)
    with on_mesh(mesh):
        placed = place(params, mesh)
        agree(found(structure, placed, HIDDEN, 4), wanted)

        def find(params, hidden):
            return structure_model(structure, params).likeliest(hidden, 4)

        text = jax.jit(find).lower(placed, HIDDEN).compile().as_text()
    # Neither the head nor the logits travel: of each device's rows, four tokens do.
    gathered = [line for line in text.splitlines() if "all-gather(" in line]
    assert gathered
    assert not any(f"{size}]" in line.split("all-gather(")[0] for line in gathered for size in (256, 128))
