import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.models.chimera import abstract_chimera
from jax_smash.models.transformer import abstract_params
from tests.chimera import PlainChimera, random_drafter
from tests.medusa import hidden_states
from tests.tiny import tiny_config, tiny_model
from train.data.rows import Batch
from train.parts.drafter.chimera import chimera_objective
from train.parts.drafter.settings import ChimeraSettings
from train.run.optimiser import Optimiser
from train.run.settings import load_kind

HEADS = 2
STEADY = Optimiser(weight_decay=0.0)


def settings(model, **changes):
    fields = {"decoding_heads": HEADS, "head_decay": 0.5, "distillation": 0.25, "optimiser": Optimiser()}
    sizes = {"batch_size": 2, "length": 8, "steps": 9}
    return ChimeraSettings(model=model.config, **sizes, **(fields | changes))


def batch(model, seed=0):
    """Returns two rows: a text of seven targets, and one of five behind which there is padding."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, model.vocab_size, n + 1) for n in (7, 5)]
    arrays = np.zeros((4, 2, 8), np.int32)
    for row, text in enumerate(texts):
        place = np.arange(len(text) - 1)
        arrays[:, row, place] = np.stack([text[:-1], text[1:], place, np.ones_like(place)])
    weights = (arrays[3] * rng.integers(0, 3, (2, 8))).astype(np.float32)
    return texts, Batch(*arrays, weights)


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def plainly(model, drafter, texts, weights, settings):
    """Returns loss, count, and how often the target's likeliest token was a head's, written out."""
    plain, rows = PlainChimera(model, drafter), np.asarray(model.params["target"]["head"][...], np.float64)
    read = hidden_states(model.definition)
    loss, count, hits = 0.0, 0.0, np.zeros(HEADS)
    for text, counts in zip(texts, weights, strict=True):
        states = np.asarray(read(model.params["target"], text), np.float64)
        for place in range(len(text) - 1):
            predicted = log_softmax(rows @ states[place])
            for head in range(min(HEADS, place)):
                known, said = states[: place - head], text[: place + 1].tolist()
                guessed = log_softmax(plain.logits(known, said, head))
                missed = -guessed[text[place + 1]] if settings.labels == "text" else -np.exp(predicted) @ guessed
                away = np.mean((plain.full(known, said) - states[place]) ** 2)
                share = counts[place] * settings.head_decay**head
                loss += share * (missed + settings.distillation * away)
                count += share
                hits[head] += counts[place] * (guessed.argmax() == predicted.argmax())
    return loss, count, hits


@pytest.mark.parametrize("labels", ["target", "text"])
def test_the_loss_is_that_of_each_token_read_again_for_each_head(labels):
    model = tiny_model()
    drafter = random_drafter(model, decoding_heads=HEADS)
    chosen, (texts, rows) = settings(model, labels=labels), batch(model)
    objective = chimera_objective(abstract_params(model.config)[0], chosen, chunk=6)
    loss, told = jax.jit(objective)({"base": model.params["target"], "drafter": drafter.params}, rows)
    expected, count, hits = plainly(model, drafter, texts, rows.weights, chosen)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(told.count, count, rtol=1e-6)
    np.testing.assert_array_equal([told.means[f"top1_{head + 1}"][0] for head in range(HEADS)], hits)
    assert told.means["distance_1"][1] == told.means["top1_1"][1]


def test_a_few_rows_are_learned_by_heart():
    model = tiny_model(vocab_size=40)
    chosen, (_, rows) = settings(model, labels="text", head_decay=1.0), batch(model, seed=1)
    rows = jax.tree.map(jnp.asarray, rows._replace(weights=rows.segments.astype(np.float32)))
    objective = chimera_objective(abstract_params(model.config)[0], chosen)
    optimiser = optax.adam(0.01)
    drafter = random_drafter(model, decoding_heads=HEADS).params
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
        losses.append([float(means[f"loss_{head + 1}"][0] / means[f"loss_{head + 1}"][1]) for head in range(HEADS)])
    chance = np.log(model.vocab_size)
    print("losses at last:", losses[-1], "chance:", chance)
    assert max(losses[-1]) < 0.5 * chance


@pytest.mark.parametrize("frozen", [False, True])
def test_an_encoder_of_texts_learns_unless_it_is_frozen(frozen):
    model = tiny_model()
    width = model.config.mlp_width
    drafter = random_drafter(model, decoding_heads=HEADS, gram_encoder="layer", encoder_mlp_width=width)
    chosen = settings(model, gram_encoder="layer", encoder_frozen=frozen, optimiser=STEADY)
    _, rows = batch(model)
    objective = chimera_objective(abstract_params(model.config)[0], chosen)
    base = {"base": model.params["target"]}
    slope = jax.jit(jax.grad(lambda drafter, rows: objective({**base, "drafter": drafter}, rows)[0]))
    slope = slope(drafter.params, rows)
    for part, learns in (("grams", not frozen), ("layer", True)):
        assert any(np.any(x) for x in jax.tree.leaves(slope[part])) is learns


def test_a_frozen_encoder_is_one_of_texts_and_does_not_decay():
    with pytest.raises(ValueError, match=r"encoder_frozen goes with gram_encoder layer, .*; got mlp"):
        settings(tiny_model(), encoder_frozen=True)
    chosen = settings(tiny_model(), gram_encoder="layer", encoder_frozen=True, optimiser=STEADY)
    with pytest.raises(ValueError, match=r"encoder_frozen needs a weight_decay of 0; got 0\.1"):
        dataclasses.replace(chosen, optimiser=Optimiser(weight_decay=0.1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gram": 6}, "gram must be from 1 to 5 tokens; got 6"),
        ({"gram_encoder": "lstm"}, "gram_encoder must be one of mlp, residual, layer; got 'lstm'"),
        ({"decoding_heads": 0}, "decoding_heads must be at least 1; got 0"),
        ({"decoding_heads": 8}, "decoding_heads must be less than the row's 8; got 8"),
        ({"head_decay": 0.0}, "head_decay must be above 0 and at most 1; got 0.0"),
        ({"distillation": -1.0}, "distillation must be at least 0 and finite; got -1.0"),
        ({"labels": "words"}, "labels must be one of target, text; got 'words'"),
        ({"max_positions": -4}, "max_positions must be at least 1; got -4"),
    ],
)
def test_settings_that_make_no_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        settings(tiny_model(), **change)


def test_a_drafter_for_smollm2_fits_twelve_megabytes(request):
    sizes = {"vocab_size": 49152, "d_model": 576, "num_heads": 9, "num_kv_heads": 3, "head_width": 64}
    model = tiny_config(**sizes, mlp_width=1536, max_positions=8192)
    chosen = load_kind(ChimeraSettings, request.config.rootpath / "train/configs/smollm2-chimera.json", model=model)
    assert 11e6 < 2 * sum(x.size for x in jax.tree.leaves(abstract_chimera(chosen.chimera)[1])) < 12e6


@pytest.mark.parametrize("name", ["chimera-paper", "tiny-chimera"])
def test_the_other_training_files_are_of_trigrams_and_four_heads(name, request):
    file = request.config.rootpath / f"train/configs/{name}.json"
    chosen = load_kind(ChimeraSettings, file, model=tiny_config(max_positions=1024))
    assert (chosen.gram, chosen.decoding_heads, chosen.gram_encoder) == (3, 4, "mlp")


def test_what_is_exported_is_measured_by_the_cross_entropy_alone():
    chosen = dataclasses.replace(settings(tiny_model()), dtype="bfloat16")
    assert (chosen.measured().dtype, chosen.measured().distillation) == ("float32", 0.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation": "gelu_tanh"}, "whose activation is silu, as the encoder's; got gelu_tanh"),
        ({"norm_offset": True}, "whose norm_offset is False, as the encoder's; got True"),
        ({"query_scale": 0.5}, "whose query_scale is .*, as the encoder's; got 0.5"),
        ({"residual_scale": 0.5}, "whose residual_scale is 1.0, as the encoder's; got 0.5"),
        ({"attention_softcap": 30.0}, "whose attention_softcap is 0.0, as the encoder's; got 30.0"),
        (
            {"qk_norm": True},
            r"whose first layer has the encoder's weights; of .*norm.* it has \[8\], and the encoder none",
        ),
        ({"qkv_bias": True}, "whose first layer has the encoder's weights; of .*b.* and the encoder none"),
        ({"pre_norms": False, "post_norms": True}, "whose first layer has the encoder's weights; of .*norm"),
        ({"unrotated_layers": (0,)}, "whose first layer has a rotary embedding"),
        ({"layer_kinds": ("sliding", "full"), "window": 4}, "whose first layer sees all .* a sliding layer of 4"),
    ],
)
def test_an_encoder_does_not_begin_as_a_layer_that_computes_something_else(changes, said):
    model = types.SimpleNamespace(config=tiny_config(**changes))
    with pytest.raises(ValueError, match=f"gram_encoder layer needs a target {said}"):
        settings(model, gram_encoder="layer")
    assert settings(model).gram_encoder == "mlp"
