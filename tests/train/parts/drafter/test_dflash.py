import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.attention.formula import QUERIES_AT_ONCE
from jax_smash.config import RopeConfig
from jax_smash.models.dflash import abstract_dflash
from jax_smash.models.dflash_config import LONGEST_BLOCK
from jax_smash.models.transformer import abstract_params
from tests.dflash import PlainDFlash, random_drafter
from tests.medusa import hidden_states
from tests.tiny import tiny_config, tiny_model
from train.data.rows import Batch
from train.parts.drafter.anchors import drawn_anchors, filled_blocks, visible
from train.parts.drafter.dflash import dflash_objective
from train.parts.drafter.settings import DFlashSettings
from train.run.optimiser import Optimiser
from train.run.settings import load_kind

SIZES = {"num_layers": 2, "taps": (1, 2), "block_size": 4}
LENGTHS = ((9, 5), (4, 2))
"""Tokens of each row's documents, the last one of each left out as it has no target."""

LENGTH = 16


def settings(model, **changes):
    fields = SIZES | {"anchors": 5, "decay_places": 2.0}
    rest = {"batch_size": 2, "length": LENGTH, "steps": 9}
    return DFlashSettings(model=model.config, optimiser=Optimiser(), **rest, **(fields | changes))


def batch(model, seed=0):
    """Returns the documents of each row by where they begin, and the rows: some padding stands behind."""
    rng = np.random.default_rng(seed)
    arrays, documents = np.zeros((4, len(LENGTHS), LENGTH), np.int32), []
    for row, lengths in enumerate(LENGTHS):
        begin, found = 0, {}
        for number, length in enumerate(lengths, 1):
            text, place = rng.integers(0, model.vocab_size, length + 1), np.arange(length)
            arrays[:, row, begin : begin + length] = np.stack([text[:-1], text[1:], place, np.full(length, number)])
            found[begin] = text.tolist()
            begin += length
        documents.append(found)
    weights = ((arrays[3] > 0) * rng.integers(0, 3, arrays.shape[1:])).astype(np.float32)
    return documents, Batch(*arrays, weights)


drawn = jax.jit(drawn_anchors, static_argnums=(1, 2))  # Call by call, it would be compiled piece by piece.


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def plainly(model, drafter, documents, rows, anchors, settings):
    """Returns loss, count, hits of each place and how often it was tried, each block written out as decoding has it."""
    plain, read = PlainDFlash(model, drafter), hidden_states(model.definition)
    head = np.asarray(model.params["target"]["head"][...], np.float64)
    places = drafter.config.block_size - 1
    loss, count, hits, tried = 0.0, 0.0, np.zeros(places), np.zeros(places)
    for row, (entries, there) in enumerate(zip(anchors.entry.tolist(), anchors.there.tolist(), strict=True)):
        for anchor, present in zip(entries, there, strict=True):
            if not present:
                continue
            begin = max(start for start in documents[row] if start <= anchor)
            text = documents[row][begin]
            states = np.asarray(read(model.params["target"], text), np.float64)
            for place, guessed in enumerate(map(log_softmax, plain.logits(text[: anchor - begin + 1]))):
                at = anchor - begin + place
                if at >= len(text) - 1:
                    continue
                predicted = log_softmax(head @ states[at])
                weight = rows.weights[row, anchor + place]
                missed = -guessed[text[at + 1]] if settings.labels == "text" else -np.exp(predicted) @ guessed
                share = weight * np.exp(-place / settings.decay_places)
                loss, count = loss + share * missed, count + share
                hits[place] += weight * (guessed.argmax() == predicted.argmax())
                tried[place] += weight
    return loss, count, hits, tried


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        ("target", {}),
        pytest.param("text", {"window": 5, "mask_token": 3, "taps": (0, 1, 2)}, marks=pytest.mark.slow),
    ],
)
def test_the_loss_is_that_of_each_block_filled_alone_behind_its_own_text(labels, changes):
    model = tiny_model()
    drafter, chosen = random_drafter(model, **changes), settings(model, labels=labels, **changes)
    documents, rows = batch(model)
    anchors = drawn(rows, chosen.anchors, chosen.seed)
    objective = dflash_objective(abstract_params(model.config)[0], chosen, chunk=6)
    loss, told = jax.jit(objective)({"base": model.params["target"], "drafter": drafter.params}, rows)
    expected, count, hits, tried = plainly(model, drafter, documents, rows, anchors, chosen)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(told.count, count, rtol=1e-6)
    np.testing.assert_array_equal([told.means[f"top1_{place + 1}"] for place in range(3)], np.stack([hits, tried], 1))
    assert 0 < tried[-1] < tried[0]


def test_an_entry_sees_its_own_block_and_the_text_before_its_anchor_and_no_other_block():
    _, rows = batch(tiny_model())
    anchors = drawn(rows, 5, 3)
    found = np.asarray(visible(jnp.asarray(rows.segments), anchors, 4))
    assert found.shape == (2, 5 * 4, LENGTH + 5 * 4)
    for row, entries in enumerate(anchors.entry.tolist()):
        for block, anchor in enumerate(entries):
            for entry in range(4 * block, 4 * block + 4):
                seen = set(np.flatnonzero(found[row, entry]).tolist())
                before = {t for t in range(anchor) if rows.segments[row, t] == rows.segments[row, anchor]}
                assert seen == before | {LENGTH + 4 * block + i for i in range(4)}


def test_context_and_blocks_of_a_row_are_turned_for_its_longest_text():
    factors = {"short_factors": (1.0,) * 4, "long_factors": (1.0, 2.0, 4.0, 9.0)}
    rope = RopeConfig(scaling="longrope", original_positions=8, **factors)
    model = tiny_model()
    made = random_drafter(model, rope=rope, num_layers=1)
    drafter, target = made.definition.bind(made.params), model.definition.bind(model.params["target"])
    _, rows = batch(model)
    taps = tuple(jnp.asarray(np.random.default_rng(i).normal(size=(2, LENGTH, 32)), jnp.float32) for i in range(3))
    anchors = drawn(rows, 5, 3)
    found = jax.jit(lambda taps, rows: filled_blocks(drafter, target, taps, rows, anchors))(taps, rows)
    joined = np.concatenate([taps[i] for i in made.config.taps], axis=-1).astype(np.float64)
    # Of documents of 9 and 5 tokens both are turned as long ones, and of 4 and 2 as short ones.
    short = dataclasses.replace(made, config=dataclasses.replace(made.config, rope=RopeConfig()))
    plains = [PlainDFlash(model, one) for one in (made, short)]
    for row, block in zip(*np.nonzero(anchors.there), strict=True):
        entry = int(anchors.entry[row, block])
        context = joined[row, entry - rows.positions[row, entry] : entry]
        expected = plains[row].filled(context, int(rows.tokens[row, entry]))
        np.testing.assert_allclose(found[row, block], expected, rtol=1e-3, atol=1e-4)


def test_a_block_is_the_same_among_others_and_whatever_stands_behind_its_anchor():
    model = tiny_model()
    made = random_drafter(model)
    drafter, target = made.definition.bind(made.params), model.definition.bind(model.params["target"])
    _, rows = batch(model)
    rng = np.random.default_rng(5)
    taps = tuple(jnp.asarray(rng.normal(size=(2, LENGTH, 32)), jnp.float32) for _ in range(3))
    # More blocks than go through the layers at once.
    anchors = jax.tree.map(lambda x: jnp.concatenate([x] * 8, axis=1)[:, :35], drawn(rows, 6, 0))
    assert anchors.entry.shape[1] * 4 > QUERIES_AT_ONCE
    filled = jax.jit(lambda taps, rows, anchors: filled_blocks(drafter, target, taps, rows, anchors))
    together = filled(taps, rows, anchors)
    last = jax.tree.map(lambda x: x[:, :1], anchors)
    changed = [jnp.where(jnp.arange(LENGTH)[None, :, None] < last.entry[:, :, None], tap, 9.0) for tap in taps]
    tokens = np.where(np.arange(LENGTH)[None] > np.asarray(last.entry), 1, rows.tokens)
    alone = filled(tuple(changed), rows._replace(tokens=tokens), last)
    for copy in range(0, 35, 6):
        np.testing.assert_allclose(together[:, copy], alone[:, 0], rtol=2e-4, atol=2e-5)
    # The control: what stands before the anchor matters.
    other = filled(tuple(tap + 1 for tap in taps), rows, last)
    assert np.abs(other - alone).max() > 0.01


def test_anchors_are_different_tokens_whose_next_one_counts():
    _, rows = batch(tiny_model())
    before = np.pad(rows.segments, ((0, 0), (1, 0)))[:, :-1]
    can = (rows.segments > 0) & (before == rows.segments) & (rows.weights > 0)
    found, fewer = drawn(rows, LENGTH, 0), drawn(rows, 2, 0)
    for row in range(2):
        entries = np.asarray(found.entry[row])[np.asarray(found.there[row])]
        assert sorted(entries.tolist()) == np.flatnonzero(can[row]).tolist()
    np.testing.assert_array_equal(fewer.entry, found.entry[:, :2])
    # Of other seeds, and of other rows, they are others; a row's own do not depend on its neighbours.
    assert (np.asarray(drawn(rows, LENGTH, 1).entry) != np.asarray(found.entry)).any()
    alone = drawn(jax.tree.map(lambda x: x[1:], rows), LENGTH, 0)
    np.testing.assert_array_equal(alone.entry, found.entry[1:])
    assert LONGEST_BLOCK <= QUERIES_AT_ONCE


def test_a_few_rows_are_learned_by_heart():
    model = tiny_model(vocab_size=40)
    chosen, (_, rows) = settings(model, labels="text", decay_places=100.0, anchors=12), batch(model, seed=1)
    rows = jax.tree.map(jnp.asarray, rows._replace(weights=(rows.segments > 0).astype(np.float32)))
    objective = dflash_objective(abstract_params(model.config)[0], chosen)
    optimiser = optax.adam(0.01)
    drafter = random_drafter(model, spread=4.0).params
    state = optimiser.init(drafter)

    @jax.jit
    def step(drafter, state):
        def loss(drafter):
            total, told = objective({"base": model.params["target"], "drafter": drafter}, rows)
            return total / told.count, told

        (_, told), gradient = jax.value_and_grad(loss, has_aux=True)(drafter)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(drafter, updates), state, told.means

    losses = []
    for _ in range(60):
        drafter, state, means = step(drafter, state)
        losses.append([float(means[f"loss_{place}"][0] / means[f"loss_{place}"][1]) for place in (1, 2, 3)])
    chance = np.log(model.vocab_size)
    print("losses at last:", losses[-1], "chance:", chance)
    assert max(losses[-1]) < 0.5 * chance


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": 1}, "block_size must be from 2 to 64 entries; got 1"),
        ({"block_size": 17}, "block_size must be at most the row's 16; got 17"),
        ({"taps": (1, 3)}, r"taps must be from 0 to the target's 2 layers; got \[1, 3\]"),
        ({"anchors": 0}, "anchors must be at least 1; got 0"),
        ({"decay_places": 0.0}, "decay_places must be above 0 and finite; got 0.0"),
        ({"labels": "words"}, "labels must be one of target, text; got 'words'"),
        ({"mask_token": -1}, "mask_token must be one of the vocabulary's"),
        ({"window": 3}, "window must be 0 or at least the block's 4 entries, which see each other; got 3"),
    ],
)
def test_settings_that_make_no_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        settings(tiny_model(), **change)


def test_a_drafter_for_smollm2_fits_eighteen_megabytes(request):
    sizes = {"vocab_size": 49152, "d_model": 576, "num_heads": 9, "num_kv_heads": 3, "head_width": 64}
    layers = {"num_layers": 30, "layer_kinds": ("full",) * 30, "window": 0}
    model = tiny_config(**sizes, **layers, mlp_width=1536, max_positions=8192)
    chosen = load_kind(DFlashSettings, request.config.rootpath / "train/configs/smollm2-dflash.json", model=model)
    size = 2 * sum(x.size for x in jax.tree.leaves(abstract_dflash(chosen.dflash)[1]))
    print(size)
    assert 16e6 < size < 18e6


@pytest.mark.parametrize(("name", "block"), [("dflash-paper", 16), ("tiny-dflash", 8)])
def test_the_other_training_files_are_of_whole_blocks(name, block, request):
    file = request.config.rootpath / f"train/configs/{name}.json"
    chosen = load_kind(DFlashSettings, file, model=tiny_config(max_positions=4096))
    assert (chosen.dflash.block_size, chosen.dflash.mask_token) == (block, None)
