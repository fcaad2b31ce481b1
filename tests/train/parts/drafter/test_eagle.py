"""How an EAGLE-3 drafter is evaluated: by depths that it is not trained by, too."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from jax_smash.models.eagle import abstract_eagle
from tests.eagle import random_drafter
from tests.tiny import tiny_config, tiny_model
from tests.train.parts.drafter import test_eagle1
from tests.train.parts.drafter.test_eagle1 import batch
from train.parts.drafter.beside import drafted_in_a_row
from train.parts.drafter.eagle import EaglePart
from train.parts.drafter.objective import eagle_objective
from train.parts.drafter.settings import EagleSettings
from train.run.optimiser import Optimiser
from train.run.step import Measured

SETTINGS = EagleSettings(
    model=tiny_config(), optimiser=Optimiser(warmup=1), steps=4, batch_size=2, length=7, test_steps=1, reply_begins=""
)


def told_by(objective):
    """Returns the loss of random weights, and what is told of them."""
    model = tiny_model()
    params = {"base": model.params["target"], "drafter": random_drafter(model, spread=3.0).params}
    return jax.jit(objective)(params, batch())


@pytest.mark.parametrize("test_steps", [1, 2])
def test_depths_that_are_not_trained_are_told_and_cost_nothing(test_steps):
    settings = dataclasses.replace(SETTINGS, test_steps=test_steps)
    structure = tiny_model().definition.graphdef
    drafter, _ = abstract_eagle(settings.eagle)
    tokens = np.arange(settings.model.vocab_size)

    def of(depths, settings=settings):
        return eagle_objective(structure, lambda x: nnx.merge(drafter, x), settings, tokens, depths=depths, chunk=64)

    (loss, told), (same, more) = told_by(of(None)), told_by(of(4))
    np.testing.assert_allclose((same, more.count), (loss, told.count), rtol=1e-6)
    for name, mean in told.means.items():
        np.testing.assert_allclose(more.means[name], mean, rtol=1e-6, err_msg=name)
    assert f"top1_{test_steps + 1}" not in told.means
    # They are those of a drafter that is trained by as many.
    _, trained = told_by(of(None, dataclasses.replace(settings, test_steps=4)))
    assert {*trained.means} == {*more.means}
    for name, mean in trained.means.items():
        np.testing.assert_allclose(more.means[name], mean, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("changes", "depths"), [({}, 4), ({"test_steps": 5}, 5), ({"length": 3}, 2)])
def test_a_step_is_chosen_by_four_depths_or_all_that_are_trained(changes, depths):
    part = EaglePart(dataclasses.replace(SETTINGS, **changes))
    for objective in (part.evaluated(), part.measured()):
        _, found = told_by(objective)
        assert {name for name in found.means if name.startswith("top1_")} == {f"top1_{n + 1}" for n in range(depths)}
        assert float(found.means["top1_2"][1]) > 0
    one, both = (Measured(0.0, {}, {"top1_1": 0.5, "top1_2": second}) for second in (0.1, 0.4))
    assert drafted_in_a_row(one) < drafted_in_a_row(both)


@pytest.mark.parametrize("settings", [SETTINGS, test_eagle1.SETTINGS], ids=["eagle", "eagle1"])
def test_a_drafter_drafts_up_to_the_position_that_its_settings_name_or_to_the_targets_last(settings):
    def positions(chosen):
        return (chosen.eagle if hasattr(chosen, "eagle") else chosen.eagle1).max_positions

    assert positions(settings) == settings.model.max_positions
    assert positions(dataclasses.replace(settings, max_positions=12)) == 12
    with pytest.raises(ValueError, match="max_positions must be at least 1; got -1"):
        dataclasses.replace(settings, max_positions=-1)
