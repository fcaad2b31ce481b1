import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.predictors import GateConfig, Pool, pool_pages
from tests.predictors import assert_near_where_seen, base_model, predictor_of, read_base


@pytest.mark.parametrize("share", [1, 2])
def test_pages_that_fill_step_by_step_have_the_scores_of_whole_rows(share):
    model = base_model()
    config, gate = predictor_of(model.config, "gate", share=share)
    taps, heads, position, block = read_base(width=12)
    whole = gate.read(taps, heads, position, block)
    rows, width = position.shape
    for layer in range(config.num_layers):
        producer = layer // share
        source = config.starts[producer]
        pool, kept, asked = Pool.empty(rows, config.num_kv_heads, config.head_width), [], []
        for t in range(width):
            pool = pool.add(heads.plain_keys[source][:, t])
            if (t + 1) % config.page == 0:
                first = position[:, t + 1 - config.page : t + 2 - config.page]
                kept.append(gate.keys_of(producer, pool.pooled(), first))
                pool = Pool.empty(rows, config.num_kv_heads, config.head_width)
            asked.append(gate.queries_of(producer, heads.plain_queries[source][:, t : t + 1], position[:, t : t + 1]))
        found = gate.scores(jnp.concatenate(asked, axis=1), jnp.concatenate(kept, axis=1))
        full = np.arange(width)[:, None] >= (np.arange(width // config.page) + 1) * config.page - 1
        assert_near_where_seen(found, gate.scores(whole.queries[layer], whole.keys[layer]), full)


def test_pages_are_pooled_as_highest_lowest_and_mean():
    keys = jnp.asarray([1.0, 5.0, -2.0, 0.0, 2.0, 2.0, 2.0, 6.0]).reshape(1, 8, 1, 1)
    np.testing.assert_array_equal(pool_pages(keys, 4)[0, :, 0], [[5, -2, 1], [6, 2, 3]])
    with pytest.raises(ValueError, match="page must divide the 8 entries; got 3"):
        pool_pages(keys, 3)


def test_a_score_depends_on_how_far_the_page_is_and_not_on_where():
    model = base_model()
    _, gate = predictor_of(model.config, "gate")
    taps, heads, position, block = read_base()
    near, moved, stretched = (
        gate.scores(found.queries[1], found.keys[1])
        for found in (gate.read(taps, heads, p, block) for p in (position, position + 40, position * 3))
    )
    np.testing.assert_allclose(near, moved, atol=1e-4 * float(jnp.abs(near).max()))
    assert float(jnp.abs(near - stretched).max()) > 1e-2 * float(jnp.abs(near).max())


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"share": 5}, "share must be from 1 to 4 layers; got 5"), ({"page": 0}, "page must be at least 1; got 0")],
)
def test_sizes_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        predictor_of(base_model().config, "gate", **changes)


def test_a_gate_of_the_usual_sizes_takes_what_its_base_has():
    config = GateConfig.for_base(base_model().config)
    assert (config.page_size, config.first_layer, config.width) == (64, 0, 128)
