"""The objective of predictors, beside a plain program in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.models.attended import Attended, attended
from jax_smash.models.definition import NnxModel
from jax_smash.models.predictors import FORMS, Importance, abstract_predictor, random_predictor
from jax_smash.models.rope import longest
from tests.predictors import SIZES, base_model
from train.data.rows import Batch
from train.parts.butler.objective import attention_loss, butler_objective
from train.parts.butler.recall import recall
from train.parts.butler.settings import ROUNDED, ButlerSettings
from train.run.optimiser import Optimiser

LENGTH = 24
DOCUMENTS = [(10, 14), (24,), (9, 9)]
"""Lengths of each row's documents; what is left is padding."""


def settings_of(kind, **changes):
    fields = {"loss": "divergence", "recall_from": 2} | changes
    predictor = {"kind": kind, **SIZES[kind], **fields.pop("predictor", {})}
    return ButlerSettings(
        model=base_model().config,
        optimiser=Optimiser(warmup=1),
        batch_size=3,
        length=fields.pop("length", LENGTH),
        steps=9,
        predictors={"a": predictor},
        **fields,
    )


@functools.cache
def rows():
    rng = np.random.default_rng(0)
    tokens, positions, segments = (np.zeros((3, LENGTH), np.int32) for _ in range(3))
    for row, lengths in enumerate(DOCUMENTS):
        start = 0
        for number, count in enumerate(lengths):
            part = slice(start, start + count)
            tokens[row, part], positions[row, part] = rng.integers(3, 80, count), np.arange(count)
            segments[row, part] = number + 1
            start += count
    return Batch(tokens, tokens, positions, segments, (segments > 0).astype(np.float32))


def parts(settings, seed=3):
    """Returns both structures and both parameters."""
    model = base_model()
    graphdef, params = random_predictor(settings.configs["a"], seed)
    return (model.definition.graphdef, {"a": graphdef}), {"base": model.params["target"], "butler": {"a": params}}


@functools.cache
def read_rows():
    """Returns taps and heads of the rows, as the base makes them."""
    batch, model = rows(), base_model()
    bound = model.definition.bind(model.params["target"])
    positions, segments = jnp.asarray(batch.positions), jnp.asarray(batch.segments)
    block = Block.causal(segments > 0, segments)
    forward = bound.forward(bound.embed(jnp.asarray(batch.tokens)), positions, None, block)
    return forward.taps, attended(bound, forward.taps, positions, longest(positions, block.valid)), positions, block


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def reference(settings, params):
    """Returns loss, count, recall, recall of the last and what these count, query by query and head by head."""
    batch, config, model = rows(), settings.configs["a"], settings.model
    taps, heads, positions, block = read_rows()
    module = NnxModel(abstract_predictor(config)[0]).bind(params["butler"]["a"])
    made = jax.tree.map(lambda x: np.asarray(x, np.float64), module.read(taps, heads, positions, block))
    queries, keys = (np.asarray(x, np.float64) for x in (heads.queries, heads.keys))
    group, page, ahead = model.num_heads // model.num_kv_heads, config.page_size, config.look_ahead
    loss = count = found = control = of = 0.0
    for layer in range(config.first_layer, model.num_layers):
        window = model.window_of(model.layer_kinds[layer]) or 10**6
        for row in range(3):
            segment = batch.segments[row]
            for t in range(LENGTH):
                later = t + ahead
                if t % settings.query_stride != batch.tokens[row].sum() % settings.query_stride:
                    continue
                if not segment[t] or later >= LENGTH or segment[later] != segment[t]:
                    continue
                seen = [j for j in range(t + 1) if segment[j] == segment[t] and j > later - window]
                if not seen:
                    continue
                true = np.stack([
                    queries[layer, row, later, n] @ keys[layer, row, seen, n // group].T * model.query_scale
                    for n in range(model.num_heads)
                ])  # fmt: skip
                asked, kept = made.queries[layer, row, t], made.keys[layer, row]
                if settings.key_bits:
                    most = {4: 7, 8: 127}[settings.key_bits]
                    unit = np.maximum(np.abs(kept).max(-1, keepdims=True), 1e-12) / most
                    unit = np.asarray(unit, jnp.bfloat16 if settings.key_bits == 4 else np.float32).astype(np.float64)
                    kept = np.clip(np.round(kept / unit), -most, most) * unit
                each = len(asked) // kept.shape[1]
                scale = asked.shape[1] ** -0.5
                if page == 1:
                    told = np.stack([asked[n] @ kept[seen, n // each].T * scale for n in range(len(asked))])
                    chosen = [i for i, j in enumerate(seen) if batch.positions[row, j] >= 4]
                    likely = np.stack([softmax(x) for x in told]).reshape(-1, group, len(seen))
                    single = likely.sum(1).repeat(group, 0) if each > 1 else told
                else:
                    pages = [
                        p
                        for p in range(t // page)
                        if all(segment[j] == segment[t] for j in range(p * page, p * page + page))
                    ]
                    attention = np.zeros((model.num_heads, LENGTH))
                    attention[:, seen] = [softmax(x) for x in true]
                    by_page = attention.reshape(-1, group, LENGTH // page, page).max((1, 3))[:, pages]
                    if len(pages) < 2 or not by_page.any():
                        continue
                    with np.errstate(divide="ignore"):
                        true = np.maximum(np.log(by_page), -1e30)
                    told = np.stack([asked[n] @ kept[pages, n].T * scale for n in range(len(asked))])
                    chosen = [i for i, p in enumerate(pages) if batch.positions[row, p * page] >= 4]
                    single = told
                if settings.loss == "logits":
                    loss, count = loss + ((true - told) ** 2).mean(0).sum(), count + len(seen)
                else:
                    pairs = [(softmax(x), softmax(y)) for x, y in zip(true, told, strict=True)]
                    loss += np.mean(
                        [sum(p * np.log(p / q) for p, q in zip(*pair, strict=True) if p > 0) for pair in pairs]
                    )
                    count += 1
                k = int(len(chosen) * settings.recall_share)
                position = batch.positions[row, t]
                if k and position >= settings.recall_from and layer >= settings.recall_layer:

                    def top(x, chosen=chosen, k=k):
                        return {chosen[i] for i in np.argsort(-x[chosen], kind="stable")[:k]}

                    found += np.mean([len(top(x) & top(y)) / k for x, y in zip(true, single, strict=True)])
                    control += np.mean([len(top(x) & {*chosen[-k:]}) / k for x in true])
                    of += 1
    layers = model.num_layers - config.first_layer
    return loss / layers, count / layers, found / layers, control / layers, of / layers


CASES = [
    ("per_head", {}),
    ("per_head", {"loss": "logits"}),
    ("per_head", {"predictor": {"look_ahead": 2, "attach": 2}}),
    ("per_head", {"recall_layer": 2}),
    ("grouped", {}),
    ("grouped", {"loss": "logits", "predictor": {"look_ahead": 1}}),
    ("gate", {}),
    ("gate", {"predictor": {"look_ahead": 1, "share": 1}}),
    ("grouped", {"query_stride": 3}),
    ("gate", {"query_stride": 2}),
    ("low_rank", {"key_bits": 4}),
    ("grouped", {"key_bits": 8}),
]


@pytest.mark.parametrize(("kind", "changes"), CASES)
def test_loss_and_recall_are_those_of_a_plain_program(kind, changes, monkeypatch):
    monkeypatch.setattr("train.parts.butler.objective.QUERIES", 8)
    settings = settings_of(kind, **changes)
    graphdefs, params = parts(settings)
    total, tally = jax.jit(butler_objective(*graphdefs, settings, with_recall=True))(params, rows())
    (recall, of), (recent, _) = tally.means["a recall"], tally.means["a recent_recall"]
    expected = reference(settings, params)
    np.testing.assert_allclose([total, tally.count, recall, recent, of], expected, rtol=2e-4, atol=1e-5)
    assert expected[0] > 0
    assert expected[4] > 0


@pytest.mark.slow
def test_predictors_beside_each_other_are_told_what_each_is_told_alone():
    alone = {kind: settings_of(kind) for kind in FORMS}
    predictors = {kind: settings.predictors["a"] for kind, settings in alone.items()}
    made = {kind: parts(settings) for kind, settings in alone.items()}
    base = next(iter(made.values()))[0][0]
    graphdefs = {kind: graphdefs["a"] for kind, ((_, graphdefs), _) in made.items()}
    butler = {kind: params["butler"]["a"] for kind, (_, params) in made.items()}
    settings = dataclasses.replace(alone["gate"], predictors=predictors)
    objective = jax.jit(butler_objective(base, graphdefs, settings, with_recall=True))
    total, tally = objective({"base": made["gate"][1]["base"], "butler": butler}, rows())
    loss = count = 0.0
    for kind, (structures, params) in made.items():
        one, own = jax.jit(butler_objective(*structures, alone[kind], with_recall=True))(params, rows())
        loss, count = loss + float(one), count + float(own.count)
        for name in ("loss", "recall", "recent_recall"):
            np.testing.assert_allclose(tally.means[f"{kind} {name}"], own.means[f"a {name}"], rtol=1e-5)
    np.testing.assert_allclose([total, tally.count], [loss, count], rtol=1e-5)


@pytest.mark.parametrize("kind", FORMS)
def test_gradients_reach_every_weight_of_the_predictor(kind):
    settings = settings_of(kind)
    graphdefs, params = parts(settings)
    objective = butler_objective(*graphdefs, settings)

    def loss(predictor, batch):
        return objective({**params, "butler": predictor}, batch)[0]

    gradients = jax.jit(jax.grad(loss))(params["butler"], rows())
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert bool(jnp.isfinite(leaf).all())
        assert float(jnp.abs(leaf).max()) > 0, path


@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_keys_get_the_gradients_of_keys_that_are_as_they_were_rounded(bits):
    settings, batch = settings_of("low_rank"), rows()
    _, heads, _, _ = read_rows()
    width = settings.configs["a"].width
    draw = np.random.default_rng(bits).normal
    queries, keys = (jnp.asarray(draw(size=(*x.shape[:4], width)), jnp.float32) for x in (heads.queries, heads.keys))
    made = Importance(queries=queries, keys=keys)
    found = jax.vmap(ROUNDED[bits])(made.keys)
    back = found.values.astype(jnp.float32) * found.scale.astype(jnp.float32)[..., None]

    def loss(made, bits):
        settings = settings_of("low_rank", key_bits=bits)
        return attention_loss(heads, made, batch, settings, settings.configs["a"], False).loss

    (value, own), (expected, of_rounded), (_, of_whole) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, bits=bits)))(x)
        for x, bits in ((made, bits), (dataclasses.replace(made, keys=back), 0), (made, 0))
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(own.keys, of_rounded.keys, rtol=1e-3, atol=1e-5)
    assert not np.allclose(own.keys, of_whole.keys, rtol=1e-3, atol=1e-5)


def test_other_rows_and_documents_change_nothing():
    settings = settings_of("per_head")
    graphdefs, params = parts(settings)
    objective = jax.jit(butler_objective(*graphdefs, settings))
    batch = rows()
    whole = objective(params, batch)
    single = 0.0
    for row, lengths in enumerate(DOCUMENTS):
        for number, count in enumerate(lengths):
            start = sum(lengths[:number])
            alone = [np.zeros_like(x) for x in batch]
            for x, y in zip(alone, batch, strict=True):
                x[0, :count] = y[row, start : start + count]
            alone[3][0, :count] = 1
            single += float(objective(params, Batch(*alone))[0])
    np.testing.assert_allclose(float(whole[0]), single, rtol=1e-4)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("kind", FORMS)
def test_memory_grows_with_the_length_of_rows_and_not_with_its_square(kind):
    short, long = (_temporaries(kind, length) for length in (512, 2048))
    assert long < 4.5 * short
    assert long < 4 * 2048**2 * base_model().config.num_heads  # Of one layer's scores, in float32.


def _temporaries(kind, length):
    """Returns the temporaries of the comparison's gradient, beside what the base and the predictor made of a row."""
    model = dataclasses.replace(base_model().config, max_positions=2048)
    settings = dataclasses.replace(settings_of(kind), model=model, length=length, batch_size=1)
    if kind == "gate":
        settings = dataclasses.replace(settings, predictors={"a": {"kind": "gate", "page": 64, "width": 6}})
    n, k, size = model.num_heads, model.num_kv_heads, settings.configs["a"].page_size
    heads = {"per_head": (n, n), "gate": (k, k)}.get(kind, (n, k))

    def floats(length, heads, width):
        return jax.ShapeDtypeStruct((model.num_layers, 1, length, heads, width), jnp.float32)

    of_base = [floats(length, heads, model.head_width) for heads in (n, k, n, k)]
    of_base = dict(zip(("plain_queries", "plain_keys", "queries", "keys"), of_base, strict=True))
    made = {"queries": floats(length, heads[0], 6), "keys": floats(length // size, heads[1], 6)}
    batch = Batch(*(jax.ShapeDtypeStruct((1, length), x.dtype) for x in rows()))

    def gradient(made, heads, batch):
        def loss(made):
            return attention_loss(
                Attended(**heads), Importance(**made), batch, settings, settings.configs["a"], False
            ).loss

        return jax.grad(loss)(made)

    return jax.jit(gradient).lower(made, of_base, batch).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gate", {"length": 22}, "page must divide the rows' length 22; got 4"),
        ("gate", {"length": 4}, "rows must have room for 2 pages of 4; got length 4"),
        ("gate", {"loss": "logits"}, "loss must be divergence for a gate of pages; got 'logits'"),
        ("grouped", {"loss": "hinge"}, "loss must be one of divergence, logits; got 'hinge'"),
        ("grouped", {"recall_share": 1.0}, "recall_share between 0 and 1; got 2 and 1.0"),
        ("per_head", {"recall_layer": 3}, "recall_layer must be from 0 to the base's last layer, 2; got 3"),
        ("grouped", {"predictor": {"look_ahead": 24}}, "look_ahead must be less than the rows' length 24; got 24"),
        ("grouped", {"query_stride": 5}, "query_stride must divide the rows' length 24; got 5"),
        ("low_rank", {"key_bits": 2}, "key_bits must be one of 0, 4, 8; got 2"),
        ("per_head", {"key_bits": 8}, "key_bits must be 0 where keys are kept whole, as per_head has them"),
        ("grouped", {"key_bits": 4, "predictor": {"int8": True}}, "key_bits must be 0 beside a predictor that rounds"),
        ("per_head", {"predictor": {"attach": 3}}, "attach must be from 0 to the base's last layer 2; got 3"),
        ("per_head", {"own_rows": 1}, "own_rows are settings of train.base alone"),
        ("per_head", {"answer_weight": 2.0}, "answer_weight says nothing of a predictor; got 2"),
        ("per_head", {"remat": True}, "remat says nothing of a predictor; got True"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, changes, said):
    with pytest.raises(ValueError, match=said):
        settings_of(kind, **changes)


def test_of_equal_scores_the_first_are_the_highest():
    rng = np.random.default_rng(0)
    # Few values, 0 and −0 among them, so that most cuts lie between equal scores.
    truth, scores = (np.round(rng.normal(size=(2, 2, 3, 16, 40)), 0).astype(np.float32) for _ in range(2))
    candidates = rng.random((2, 16, 40)) < np.linspace(0, 1, 16)[None, :, None]
    count = np.floor(candidates.sum(-1) / 2)

    def highest(x):
        order = np.argsort(np.where(candidates[:, None, None], -x, np.inf), axis=-1, kind="stable")
        return (np.argsort(order, axis=-1) < count[:, None, None, :, None]) & candidates[:, None, None]

    expected = (highest(truth) & highest(scores)).sum(-1).mean((1, 2)) / np.maximum(count, 1)
    found, any_ = recall(*map(jnp.asarray, (truth, scores, candidates)), 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(any_, count > 0)
    assert 0 < expected.mean() < 1
