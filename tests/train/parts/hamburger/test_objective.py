"""The objective over rows of slots, against one document at a time, written out token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from tests.smashers import BASES, base_of, smasher_of
from tests.train.corpus_files import make_tokenizer
from tests.train.segmented_files import write_segmented
from train.data.rows import Batch
from train.data.slot_pieces import Room, Segmented
from train.data.slot_rows import held_out_slot_batches
from train.parts.hamburger.objective import smash_objective
from train.parts.hamburger.settings import SmashSettings
from train.parts.hamburger.start import first_smash_params
from train.parts.language_model.objective import language_model_objective
from train.parts.lora import first_lora, merged
from train.run.optimiser import Optimiser

FIRST = [[10], [11, 12], [-13, -14, -15], [16], [17, 18]]
SECOND = [[20], [21], [22, 23], [24, 25, 26]]
CHAT = [[30], [31], [9], [32, 33], [8], [34], [9], [35, 8]]
DOCUMENTS = [FIRST, SECOND, CHAT]
ROOM = Room(slots=30, further=9, tokens=100)
BEGINS, ENDS = 9, 8
MERGED = jax.jit(merged, static_argnums=2)
NAME = "qwen2"
"""Of the base: two layers, one of them with a window, and a tied head."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Makes the one batch of hand-made documents, with J places a slot."""
    root = tmp_path_factory.mktemp("rows")
    tokenizer = make_tokenizer(root / "tokenizer")

    def rows_(documents=DOCUMENTS, *, micro_steps=3, room=ROOM, batch_size=1):
        folder = root / f"{len(list(root.iterdir()))}"
        write_segmented(folder, tokenizer, documents, begins=(BEGINS,), ends=(ENDS,), micro_steps=micro_steps)
        batches = held_out_slot_batches(
            Segmented(folder, tokenizer), room=room, micro_steps=micro_steps, batch_size=batch_size
        )["a"]
        assert len(batches) == 1
        return jax.tree.map(jnp.asarray, batches[0])

    return rows_


def settings_of(name=NAME, **changes):
    given = {"micro_steps": 3, "micro_layers": 1, "stop_weight": 0.7, "optimiser": Optimiser()} | changes
    return SmashSettings(model=BASES[name], batch_size=1, length=20, steps=200, **given)


def params_of(name=NAME, **sizes):
    base, smasher = base_of(name), smasher_of(name, micro_layers=1, **sizes)
    (base_def, base_params), (smasher_def, smasher_params) = nnx.split(base), nnx.split(smasher)
    return (base_def, smasher_def), {"base": base_params, "smasher": smasher_params}


@functools.cache
def program(settings, *graphdefs):
    """The compiled objective; tests share it."""
    return jax.jit(smash_objective(*graphdefs, settings, chunk=16))


def value(settings, batch, graphdefs, params):
    total, tally = program(settings, *graphdefs)(params, batch)
    return float(total), jax.tree.map(float, {"count": tally.count, **tally.means})


def is_reply(document):
    """Marks the groups of a document that a model says: those after BEGINS of a chat; else those from the answer on, or
    all but the first."""
    if not any(group == [BEGINS] for group in document):
        answer = next((i for i, group in enumerate(document) if min(group) < 0), 1)
        return [i >= answer for i in range(len(document))]
    marks, inside = [], False
    for group in document:
        marks.append(inside)
        inside = (inside or group == [BEGINS]) and ENDS not in group
    return marks


def padded(document, micro_steps=3, slots=8):
    """Returns a document's tokens, a group a row, and the groups' sizes; zeros behind both."""
    tokens, count = np.zeros((slots, micro_steps), np.int32), np.zeros(slots, np.int32)
    for i, group in enumerate(document):
        tokens[i, : len(group)], count[i] = np.abs(group), len(group)
    return jnp.asarray(tokens), jnp.asarray(count)


def alone(name, document):
    """Returns, for one document that shares a row with no other, what each slot says: log-probabilities and stops."""
    return [np.asarray(x) for x in saying(name)(*padded(document))]


@functools.cache
def saying(name):
    """Returns a function of a padded document; it is compiled once."""
    base, smasher = base_of(name), smasher_of(name, micro_layers=1, micro_steps=3)

    @jax.jit
    def says(tokens, count):
        vectors = base.embed(tokens)
        position, valid = (jnp.cumsum(count) - 1)[None].astype(jnp.int32), (count > 0)[None]
        made = base.forward(smasher.fuse(vectors, count)[None], position, None, Block.causal(valid))
        prefix = smasher.prefix(made.taps, made.hidden)[0]
        said = smasher.spoken(prefix[:-1], made.hidden[0, :-1], vectors[1:])
        return jax.nn.log_softmax(base.unembed(said), axis=-1), jax.nn.sigmoid(smasher.stop_logits(said))

    return says


def reference(name, document, *, answer=1.0, own=False, cut=()):
    """Returns the summed cross-entropy and stop loss of a document that is alone, and the sums of their weights.

    With `own`, groups also end before a token that is not the most probable one. Ends of `cut` groups do not count.
    """
    log_p, ends = alone(name, document)
    entropy = stop = weight = stop_weight = 0.0
    for slot, group in enumerate(document[1:]):
        for i, token in enumerate(group):
            w = answer if token < 0 else 1.0
            entropy, weight = entropy - w * float(log_p[slot, i, abs(token)]), weight + w
            if is_reply(document)[slot + 1] and not (slot + 1 in cut and i == len(group) - 1):
                p = float(ends[slot, i])
                last = i == len(group) - 1 or (own and np.argmax(log_p[slot, i + 1]) != abs(group[i + 1]))
                stop += -w * np.log(p if last else 1 - p)
                stop_weight += w
    return np.array([entropy, stop, weight, stop_weight])


@pytest.mark.parametrize("name", ["llama-windows", "gemma2"])
def test_rows_of_slots_give_what_documents_give_one_by_one(rows, name):
    graphdefs, params = params_of(name, micro_steps=3)
    total, means = value(settings_of(name), rows(), graphdefs, params)
    sums = sum(reference(name, document) for document in DOCUMENTS)
    np.testing.assert_allclose(total, sums[0] + 0.7 * sums[1], rtol=1e-4)
    assert means["count"] == sums[2] == 23
    np.testing.assert_allclose(means["cross_entropy"], [sums[0], sums[2]], rtol=1e-4)
    np.testing.assert_allclose(means["stop_loss"], [sums[1], sums[3]], rtol=1e-4)
    assert means["tokens_a_slot"] == (26, 17)
    np.testing.assert_allclose(np.add(means["first_loss"], means["further_loss"]), means["cross_entropy"], rtol=1e-5)


def test_one_token_a_slot_is_the_base_objective(rows):
    alone = [[[token] for group in document for token in group] for document in DOCUMENTS]
    batch = rows(alone, micro_steps=1, room=Room(30, 1, 100))
    behind = np.pad(batch.segments[:, 1:], ((0, 0), (0, 1)))
    same = (behind == batch.segments) & (batch.segments > 0)
    tokens = batch.tokens[:, :, 0]
    plain = Batch(
        tokens=tokens,
        targets=np.where(same, np.roll(tokens, -1, axis=1), 0),
        positions=batch.position,
        segments=batch.segments,
        weights=same.astype(np.float32),
    )
    graphdefs, params = params_of(micro_steps=1)
    expected = jax.jit(language_model_objective(graphdefs[0]))(params["base"], plain)
    _, means = value(settings_of(micro_steps=1), batch, graphdefs, params)
    np.testing.assert_allclose(means["cross_entropy"], expected, rtol=1e-5)
    assert "further_loss" not in means


def test_groups_of_one_token_ask_nothing_of_the_micro_decoder(rows):
    alone = [[[token] for group in document for token in group] for document in DOCUMENTS]
    batch = rows(alone)
    graphdefs, params = params_of(micro_steps=3)
    _, means = value(settings_of(), batch, graphdefs, params)
    assert means["further_loss"][1] == 0
    assert means["count"] == 23


def test_remat_and_scan_change_nothing(rows):
    graphdefs, params = params_of("all-sliding", micro_steps=3)
    plain, spared = (
        gradient_of(settings_of("all-sliding", **o), rows(), params, graphdefs)
        for o in ({}, {"remat": True, "scan": True})
    )
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(spared), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@functools.cache
def gradient_program(settings, *graphdefs):
    """The compiled gradient of the total; tests share it."""
    objective = smash_objective(*graphdefs, settings)
    return jax.jit(jax.grad(lambda p, b: objective(p, b)[0]))


def gradient_of(settings, batch, params, graphdefs):
    return gradient_program(settings, *graphdefs)(params, batch)


def moved(gradients):
    """The names of what has a gradient anywhere."""
    leaves = jax.tree_util.tree_flatten_with_path(gradients)[0]
    return {jax.tree_util.keystr(path, simple=True, separator=".") for path, g in leaves if np.abs(g).max() > 0}


def test_gradients_reach_every_module_and_the_base_where_it_is_trained(rows):
    graphdefs, params = params_of(micro_steps=3)
    names = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    assert moved(gradient_of(settings_of(), rows(), params, graphdefs)) == names
    frozen = moved(gradient_of(settings_of(base="frozen"), rows(), params, graphdefs))
    assert frozen == {name for name in names if name.startswith("smasher")}


def test_low_rank_changes_are_trained_and_work_as_merged(rows):
    graphdefs, params = params_of(micro_steps=3)
    settings = settings_of(base="lora", rank=2, alpha=6.0)
    lora = first_lora(params["base"], 2, 0)
    before = value(settings_of(), rows(), graphdefs, params)
    assert value(settings, rows(), graphdefs, params | {"lora": lora}) == before
    rng = np.random.default_rng(0)
    lora = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype), lora)
    got = value(settings, rows(), graphdefs, params | {"lora": lora})
    expected = value(settings_of(), rows(), graphdefs, params | {"base": MERGED(params["base"], lora, 3.0)})
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert abs(got[0] - before[0]) > 1e-2
    names = moved(gradient_of(settings, rows(), params | {"lora": lora}, graphdefs))
    assert {name.split(".")[0] for name in names} == {"smasher", "lora"}
    assert len([name for name in names if name.startswith("lora")]) == 2 * len(lora)


def test_low_rank_changes_are_merged_before_weights_are_rounded(rows):
    """A change below a step of bfloat16 counts where it moves a weight over the edge between two of them."""
    graphdefs, params = params_of(micro_steps=3)
    rng = np.random.default_rng(0)
    lora = first_lora(params["base"], 2, 0)
    lora = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.02, x.shape), x.dtype), lora)
    settings = settings_of(base="lora", rank=2, alpha=6.0, dtype="bfloat16", kl_weight=0.3)
    got = value(settings, rows(), graphdefs, params | {"lora": lora})
    whole = {"base": MERGED(params["base"], lora, 3.0), "teacher": params["base"]}
    expected = value(settings_of(dtype="bfloat16", kl_weight=0.3), rows(), graphdefs, params | whole)
    assert got == expected

    @jax.jit
    def rounded(tree):
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)

    late = MERGED(rounded(params["base"]), rounded(lora), 3.0)
    assert (
        value(settings_of(dtype="bfloat16", kl_weight=0.3), rows(), graphdefs, params | whole | {"base": late}) != got
    )


def test_the_divergence_is_from_the_base_on_tokens_in_slots_of_their_own(rows):
    graphdefs, params = params_of(micro_steps=3)
    teacher = jax.tree.map(lambda x: x * jnp.float32(1.02), params["base"])
    params["teacher"] = teacher
    total, means = value(settings_of(kl_weight=0.3), rows(), graphdefs, params)
    plain, _ = value(settings_of(), rows(), graphdefs, params)
    old, expected = nnx.merge(graphdefs[0], teacher), 0.0

    @jax.jit
    def predicts(flat):
        position = jnp.arange(flat.shape[1], dtype=jnp.int32)[None]
        hidden = old.forward(old.embed(flat), position, None, Block.causal(flat > 0)).hidden[0]
        return jax.nn.log_softmax(old.unembed(hidden), axis=-1)

    for document in DOCUMENTS:
        flat = [abs(token) for group in document for token in group]
        log_p = np.asarray(predicts(jnp.array([flat + [0] * (12 - len(flat))], jnp.int32)))
        log_q, token = alone(NAME, document)[0], len(document[0])
        for slot, group in enumerate(document[1:]):
            for i in range(len(group)):
                expected += float(np.sum(np.exp(log_p[token - 1]) * (log_p[token - 1] - log_q[slot, i])))
                token += 1
    np.testing.assert_allclose(means["divergence"][0], expected, rtol=1e-3)
    np.testing.assert_allclose(total, plain + 0.3 * expected, rtol=1e-4)


def test_answers_and_circles_weigh_what_the_rows_say(rows):
    graphdefs, params = params_of(micro_steps=3)
    batch = rows([FIRST])
    heavy = batch._replace(weights=jnp.where(jnp.isin(batch.tokens, jnp.array([13, 14, 15])), 5.0, batch.weights))
    sums = reference(NAME, FIRST, answer=5.0)
    total, means = value(settings_of(), heavy, graphdefs, params)
    np.testing.assert_allclose(total, sums[0] + 0.7 * sums[1], rtol=1e-4)
    assert means["count"] == sums[2] == 20


def test_groups_end_before_what_the_micro_decoder_gets_wrong_if_asked_for(rows):
    graphdefs, params = params_of(micro_steps=3)
    said = [list(map(list, document)) for document in DOCUMENTS]
    # One token behind a group's first is made what the decoder says, then the one behind that: the rest are slips.
    for slot, place in ((2, 1), (2, 2)):
        said[0][slot][place] = -int(np.argmax(alone(NAME, said[0])[0][slot - 1, place]))
    said[1][3][1] = int(np.argmax(alone(NAME, said[1])[0][2, 1]))
    got = {
        target: value(settings_of(stop_target=target), rows(said), graphdefs, params)[0] for target in ("groups", "own")
    }
    for target, total in got.items():
        sums = sum(reference(NAME, document, own=target == "own") for document in said)
        np.testing.assert_allclose(total, sums[0] + 0.7 * sums[1], rtol=1e-4)
    assert got["own"] != got["groups"]


@pytest.mark.parametrize("target", ["groups", "own"])
def test_the_stop_head_is_not_asked_where_chance_ended_a_group(rows, target):
    graphdefs, params = params_of(micro_steps=3)
    batch = rows([FIRST])
    batch = batch._replace(cut=batch.cut.at[0, jnp.array([1, 3])].set(True))
    total, means = value(settings_of(stop_target=target), batch, graphdefs, params)
    sums = reference(NAME, FIRST, own=target == "own", cut=(1, 3))
    np.testing.assert_allclose(total, sums[0] + 0.7 * sums[1], rtol=1e-4)
    assert means["stop_loss"][1] == sums[3] < reference(NAME, FIRST)[3]


@pytest.mark.parametrize("target", ["groups", "own"])
@pytest.mark.parametrize("singles", [False, True])
def test_the_token_behind_a_group_is_learned_if_asked_for(rows, singles, target):
    graphdefs, params = params_of(micro_steps=3)
    batch = rows()
    if singles:
        said = (batch.segments[0, 1:] == batch.segments[0, :-1]) & (batch.segments[0, 1:] > 0)
        slots = np.flatnonzero(said & ((batch.count[0, 1:] > 1) | batch.spoken[0, 1:]))
        batch = batch._replace(further=jnp.asarray(slots, jnp.int32)[None])
    plain, means = value(settings_of(stop_target=target), batch, graphdefs, params)
    entropy = weight = 0.0
    for document in DOCUMENTS:
        log_p, said = alone(NAME, document)[0], is_reply(document)
        for slot, group in enumerate(document[1:]):
            size, behind = len(group), document[slot + 2 : slot + 3]
            if behind and all(said[slot + 1 : slot + 3]) and (1 if singles else 2) <= size < 3:
                entropy -= 0.5 * float(log_p[slot, size, abs(behind[0][0])])
                weight += 0.5
    assert weight > 0
    total, got = value(settings_of(stop_target=target, beyond_weight=0.5), batch, graphdefs, params)
    np.testing.assert_allclose(total, plain + entropy, rtol=1e-4)
    assert got["count"] == means["count"] + weight
    # The stop head is asked what it was asked without.
    np.testing.assert_allclose(got["stop_loss"], means["stop_loss"], rtol=1e-5)
    np.testing.assert_allclose(got["first_loss"], means["first_loss"], rtol=1e-5)


def test_padding_rows_count_nothing(rows):
    graphdefs, params = params_of(micro_steps=3)
    one, two = (value(settings_of(), rows(batch_size=n), graphdefs, params) for n in (1, 2))
    np.testing.assert_allclose(one[0], two[0], rtol=1e-5)
    assert one[1]["count"] == two[1]["count"]


def test_half_precision_comes_near(rows):
    graphdefs, params = params_of(micro_steps=3)
    whole, half = (value(settings_of(dtype=d), rows(), graphdefs, params)[0] for d in ("float32", "bfloat16"))
    np.testing.assert_allclose(whole, half, rtol=0.05)
    assert whole != half


def test_a_run_trains_what_its_settings_ask_for_and_freezes_the_rest():
    _, base = nnx.split(base_of())
    for changes, trained, frozen in (
        ({}, {"base", "smasher"}, set()),
        ({"base": "lora"}, {"smasher", "lora"}, {"base"}),
        ({"kl_weight": 0.1}, {"base", "smasher"}, {"teacher"}),
        ({"kl_weight": 0.1, "base": "frozen"}, {"smasher"}, {"base"}),
        ({"kl_weight": 0.1, "base": "frozen", "teacher_sha256": "5"}, {"smasher"}, {"base", "teacher"}),
    ):
        settings = settings_of(**changes, optimiser=Optimiser(warmup=0, weight_decay=0.0))
        params = jax.eval_shape(lambda b, s=settings: first_smash_params(s, b)[1], base)
        assert {*params} == trained
        assert {*settings.frozen_roles} == frozen
        transformation = settings.transformation()
        with jax.numpy_dtype_promotion("standard"):
            ones = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), params)
            updates = jax.jit(lambda p, t=transformation: t.update(p, t.init(p), p)[0])(ones)
        assert all(np.abs(u).max() > 0 for u in jax.tree.leaves(updates))
