import dataclasses

import pytest

from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.methods import DraftOptions, check_draft, make_method, shipped
from tests.medusa import random_heads
from tests.tiny import tiny_model


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Returns a model that heads come with the package for."""
    model, folder = tiny_model(), tmp_path / "two-layer" / "medusa"
    monkeypatch.setattr(shipped, "SHIPPED_DRAFTERS", tmp_path)
    heads = random_heads(model, num_heads=2)
    save_medusa(folder, heads.config, heads.params)
    return model


@pytest.mark.parametrize(
    ("method", "drafter"), [("medusa", None), ("medusa", "shipped:medusa"), ("hybrid", "shipped:medusa")]
)
def test_what_comes_with_the_package_drafts(model, method, drafter):
    assert "drafter" in make_method(model, method, draft=DraftOptions(tree="chain-2", drafter=drafter)).params


def test_a_method_that_needs_no_drafter_has_none(model):
    assert "drafter" not in make_method(model, "hybrid", draft=DraftOptions(tree="chain-2")).params


def test_where_none_is_shipped_the_message_tells_which_are(model):
    said = r"of method eagle none is shipped for two-layer \(shipped: medusa for two-layer\)"
    with pytest.raises(ValueError, match=said):
        make_method(model, "eagle")
    with pytest.raises(ValueError, match=said.replace("for two-layer ", "for other ", 1)):
        make_method(dataclasses.replace(model, name="other"), "eagle")
    with pytest.raises(ValueError, match="drafter: must be shipped:eagle; got shipped:medusa"):
        check_draft("eagle", DraftOptions(drafter="shipped:medusa"))
    with pytest.raises(ValueError, match=r"drafter: must be shipped:eagle or .*; got shipped:oak"):
        check_draft("hybrid", DraftOptions(drafter="shipped:oak"))
