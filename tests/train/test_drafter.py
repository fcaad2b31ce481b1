"""Drafters from the first step to decoding with them."""

import contextlib
import dataclasses
import io
import json
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_smash
from jax_smash.checkpoints.chimera import load_chimera
from jax_smash.checkpoints.dflash import load_dflash
from jax_smash.checkpoints.eagle import load_eagle
from jax_smash.checkpoints.eagle1 import load_eagle1
from jax_smash.checkpoints.medusa import load_medusa
from jax_smash.loading import find
from jax_smash.methods import RANDOM, DraftOptions, make_method
from jax_smash.sharding import make_mesh
from jax_smash.smash.options import SmashOptions
from tests.checkpoints import LLAMA, write_checkpoint
from tests.train.corpus_files import make_packed, write_corpus
from tests.train.outputs import newest
from train.drafter import KINDS, changes_of, main
from train.pack import pack_corpus
from train.parts.drafter.chimera import ChimeraPart
from train.parts.drafter.eagle import EaglePart
from train.parts.drafter.medusa import MedusaPart
from train.parts.drafter.rows import commonest
from train.run.choice import chosen_params
from train.run.metrics import read_metrics

CONFIG = {
    "head_size": 200,
    "mlp_width": 32,
    "test_steps": 3,
    "optimiser": {"warmup": 1, "learning_rate": 0.003},
    "batch_size": 8,
    "length": 16,
    "steps": 6,
}

OTHERS = {
    "eagle1": {"mlp_width": 32},
    "medusa": {"num_heads": 2, "own_head": False},
    "chimera": {"mlp_width": 32, "decoding_heads": 2},
    "dflash": {"mlp_width": 32, "num_layers": 1, "block_size": 4, "anchors": 2},
    "micro": {"micro_steps": 3},
}
"""Fields of small drafters of the other kinds."""

RUN = {"save_every": 1, "log_every": 2, "evaluate_every": 3, "mesh": "data=2"}
"""Options of a run in this process."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Packed shards, a target with their tokenizer, and a configuration."""
    folder = tmp_path_factory.mktemp("drafter")
    _, tokenizer = make_packed(folder)
    write_checkpoint(folder / "base", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1})
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / "base")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "sources.md").write_text("Sentences about foxes, written for this test.")
    return folder


@pytest.fixture(scope="module")
def whole(root):
    """A run that nothing disturbs, and what it said."""
    return root / "whole", said(root, root / "whole", **RUN | {"save_every": 100})


def config_of(root, kind):
    """Returns the configuration of a small drafter."""
    if kind == "eagle":
        return root / "config.json"
    file, shared = root / f"{kind}.json", ("optimiser", "batch_size", "length", "steps", "head_size")
    file.write_text(json.dumps({name: CONFIG[name] for name in shared} | OTHERS[kind]))
    return file


def said(root, output, kind="eagle", **options):
    """Makes the run, or what is left of it, in this process; returns what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(kind, config_of(root, kind), root / "packed", str(root / "base"), output, **options)
    return out.getvalue()


def begin(root, output, kind, environment, errors):
    """Begins the same run in a process of its own, which writes its errors to a file."""
    command = [sys.executable, "-m", "train.drafter", "--kind", kind, "--config", config_of(root, kind)]
    command += ["--packed", root / "packed", "--base", root / "base", "--output", output]
    command += ["--devices", jax.device_count()]
    command += [word for name, value in RUN.items() for word in (f"--{name.replace('_', '-')}", value)]
    # No pipe that nobody reads.
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=errors, stderr=errors)


def test_the_export_is_a_drafter_for_the_target_and_no_other(root, whole, tmp_path):
    folder = whole[0] / "drafter"
    assert {file.name for file in folder.iterdir()} == {"README.md", "eagle.json", "eagle.safetensors"}
    model = jax_smash.load(root / "base")
    draft = DraftOptions(drafter=folder)
    options = {"max_new_tokens": 6, "slots": 64}
    drafted = jax_smash.generate(model, ["Once there"], method="eagle", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    other = shutil.copytree(root / "base", tmp_path / "other")
    write_checkpoint(other, {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1}, seed=5)
    said = r"the drafter in .* was trained for a target whose weights have fingerprint \w{16}…; those of .*other have"
    with pytest.raises(ValueError, match=said):
        jax_smash.generate(jax_smash.load(other), ["Once there"], method="eagle", draft=draft, **options)


def test_the_run_says_how_often_the_targets_token_was_among_the_likeliest(whole):
    folder, printed = whole
    lines = read_metrics(folder / "metrics.jsonl")
    measured = [line for line in lines if "loss" in line]
    assert [line["step"] for line in measured] == [2, 4, 6]
    assert measured[-1]["loss"] < measured[0]["loss"]
    choice = [line for line in lines if "choice_means" in line]
    assert [line["step"] for line in choice] == [3, 6]
    (held_out,) = [line for line in lines if "held_out_means" in line]
    best = max(choice, key=lambda line: line["choice_score"])
    assert held_out["step"] == best["step"]
    assert f"step {best['step']} of 6 chosen by its score {best['choice_score']:.4f}" in printed
    for means in (*measured, held_out["held_out_means"], *(line["choice_means"] for line in choice)):
        for depth in (1, 2, 3):
            shares = [means[f"top{rank}_{depth}"] for rank in range(1, 6)]
            assert shares == sorted(shares)
            assert 0 <= shares[0] <= shares[-1] <= 1
            assert means[f"loss_{depth}"] > 0
    card = (folder / "drafter/README.md").read_text()
    assert "| Tokens that it can say | 200, " in card
    assert printed.endswith(f"exported to {folder / 'drafter'}\n")
    made = load_eagle(folder / "drafter")
    assert f"fingerprint of its weights {made.base_fingerprint} |" in card
    assert made.trained_length == CONFIG["length"]
    assert "| Trained on | rows of 16 tokens; of later ones the target may keep fewer |" in card


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_ends_with_the_same_weights(root, same_programs, tmp_path, kind):
    said(root, tmp_path / "whole", kind, **RUN)
    with (tmp_path / "errors").open("w") as errors:
        process = begin(root, tmp_path / "run", kind, same_programs(), errors)
        while newest(tmp_path / "run") < 2 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 2 <= newest(tmp_path / "run") < 6, (tmp_path / "errors").read_text()[-2000:]
    said(root, tmp_path / "run", kind, resume=True, **RUN)
    ours, theirs = (
        {file.name: file.read_bytes() for file in (tmp_path / run / "drafter").iterdir() if file.suffix != ".md"}
        for run in ("run", "whole")
    )
    assert ours == theirs
    assert any(name.endswith(".safetensors") for name in ours)


@pytest.mark.slow
def test_a_short_training_drafts_more_than_random_weights_do(tmp_path):
    corpus = write_corpus(tmp_path / "data")
    pack_corpus(corpus, tmp_path / "data", find("tiny"), tmp_path / "packed")
    changes = {"head_size": 0, "test_steps": 2, "steps": 24, "batch_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    main("eagle", tmp_path / "config.json", tmp_path / "packed", "tiny", tmp_path / "run", mesh="data=1")
    model = jax_smash.load("tiny")
    kept = []
    for drafter in (RANDOM, tmp_path / "run/drafter"):
        options = {"max_new_tokens": 16, "slots": 64, "draft": DraftOptions(drafter=drafter, tree="chain-4")}
        completions = jax_smash.generate(model, ["Once there were 5", "Once there were"], method="eagle", **options)
        kept.append(np.mean([c.drafted.kept[0] / c.drafted.tried[0] for c in completions]))
    print("kept at depth 1:", kept)
    assert kept[1] > kept[0] + 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_steps": 16}, "test_steps must be from 1 to less than the row's 16; got 16"),
        ({"step_decay": 0}, "step_decay must be above 0 and at most 1; got 0"),
        ({"head_size": 291}, "head_size must be from 0 to the vocabulary's 290; got 291"),
        ({"taps": [1, 3]}, "taps must be from 0 to the target's 2 layers; got"),
        ({"own_rows": 2}, "recall and own_rows are settings of train.base alone"),
        ({"choice_share": 1}, "choice_share must be from 0 to below 1; got 1"),
        ({"layers": 2}, "unknown field 'layers'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(root, tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(ValueError, match=message):
        main("eagle", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_kind_and_a_gguf_target_are_refused(root, tmp_path):
    with pytest.raises(ValueError, match="one of eagle, eagle1, medusa, chimera, dflash, micro; got 'falcon'"):
        main("falcon", root / "config.json", root / "packed", str(root / "base"), tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="must be a Hugging Face folder"):
        main("eagle", root / "config.json", root / "packed", str(tmp_path / "model.gguf"), tmp_path / "run")


@pytest.mark.slow
def test_weights_of_the_dtype_that_is_asked_for_are_computed_with(root, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"dtype": "bfloat16", "steps": 2, "accumulate": 2}))
    main("eagle", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run", mesh="fsdp=2")
    loaded = load_eagle(tmp_path / "run/drafter")
    assert {x.dtype for x in jax.tree.leaves(loaded.params)} == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.int32)}


@pytest.mark.slow
def test_medusas_heads_begin_as_the_targets_own_and_draft_for_it_alone(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("optimiser", "batch_size", "length", "steps")} | {"num_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    output = tmp_path / "run"
    main("medusa", tmp_path / "config.json", root / "packed", str(root / "base"), output, mesh="data=2", log_every=2)
    lines = [line for line in read_metrics(output / "metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    model = jax_smash.load(root / "base")
    rows = np.asarray(model.params["target"]["head"][...])
    part = MedusaPart.from_files(tmp_path / "config.json", root / "packed", root / "base")
    first = part.begin(make_mesh("data=1"))["drafter"]["heads"][1]
    np.testing.assert_array_equal(first["head"][...], rows)
    assert not first["blocks"][0]["w"][...].any()
    options = {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=output / "drafter", tree="chain-2")
    drafted = jax_smash.generate(model, ["Once there"], method="medusa", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    made = load_medusa(output / "drafter")
    assert (made.base_fingerprint, made.trained_length) == (model.fingerprint, CONFIG["length"])


@pytest.mark.parametrize(
    ("kind", "method", "fields"),
    [
        ("medusa", "medusa", {"num_heads": 2, "own_head": False}),
        *(
            pytest.param(kind, method, fields, marks=pytest.mark.slow)
            for kind, method, fields in [
                ("chimera", "chimera", {"decoding_heads": 2, "mlp_width": 32}),
                ("dflash", "dflash", {"num_layers": 1, "block_size": 4, "anchors": 2, "mlp_width": 32}),
                ("eagle1", "eagle", {"mlp_width": 32}),
                ("eagle", "eagle", {"mlp_width": 32, "test_steps": 2, "own_head": False}),
            ]
        ),
    ],
)
def test_a_drafter_may_learn_to_say_the_commonest_tokens_alone(root, tmp_path, kind, method, fields):
    fields |= {name: CONFIG[name] for name in ("optimiser", "batch_size", "length", "steps", "head_size")}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    files = (tmp_path / "config.json", root / "packed", str(root / "base"))
    main(kind, *files, tmp_path / "run", **RUN)
    lines = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    drafter, model = tmp_path / "run/drafter", jax_smash.load(root / "base")
    found = make_method(model, method, draft=DraftOptions(drafter=drafter, tree="chain-2")).params["said"]
    counts = KINDS[kind].from_files(*files).counts
    np.testing.assert_array_equal(found["tokens"][...], commonest(counts, CONFIG["head_size"]))
    assert "| Tokens that it can say | 200, " in (drafter / "README.md").read_text()
    options = {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=drafter, tree="chain-2")
    drafted = jax_smash.generate(model, ["Once there"], method=method, draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids


@pytest.mark.slow
def test_chimera_learns_beside_its_target_goes_on_to_the_same_weights_and_drafts_for_it_alone(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("mlp_width", "optimiser", "batch_size", "length", "steps")}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"decoding_heads": 2}))
    places = ("chimera", tmp_path / "config.json", root / "packed", str(root / "base"))
    main(*places, tmp_path / "whole", **RUN)
    main(*places, tmp_path / "run", until=4, **RUN)
    main(*places, tmp_path / "run", resume=True, **RUN)
    for name in ("chimera.safetensors", "chimera.json"):
        assert (tmp_path / "run/drafter" / name).read_bytes() == (tmp_path / "whole/drafter" / name).read_bytes()
    lines = [line for line in read_metrics(tmp_path / "whole/metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    for depth in (1, 2):
        shares = [lines[-1][f"top{rank}_{depth}"] for rank in range(1, 6)]
        assert shares == sorted(shares)
        assert lines[-1][f"distance_{depth}"] > 0
    model = jax_smash.load(root / "base")
    first = ChimeraPart.from_files(*places[1:]).begin(make_mesh("data=1"))["drafter"]
    assert not first["heads"][...].any()
    np.testing.assert_array_equal(first["final_norm"]["scale"][...], model.params["target"]["final_norm"]["scale"][...])
    drafter, options = tmp_path / "run/drafter", {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=drafter, tree="chain-2")
    drafted = jax_smash.generate(model, ["Once there"], method="chimera", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    made = load_chimera(drafter)
    assert (made.base_fingerprint, made.trained_length) == (model.fingerprint, CONFIG["length"])
    assert "| Grams | 3 tokens, encoder mlp |" in (drafter / "README.md").read_text()


@pytest.mark.slow
def test_the_micro_step_decoder_learns_beside_a_base_that_reads_tokens_alone_and_drafts_for_it(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("optimiser", "batch_size", "length", "steps", "head_size")}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"micro_steps": 3}))
    main("micro", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run", **RUN)
    lines = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line]
    for name in ("loss", "loss_1", "loss_2", "stop_loss"):
        assert lines[-1][name] < lines[0][name]
    drafter, options = tmp_path / "run/drafter", {"max_new_tokens": 6, "slots": 64}
    model = jax_smash.load(root / "base", modules=drafter)
    own = model.modules.options
    assert (own.mode, own.token_confidence, own.micro_head) == ("exact", 0.0, "200")
    eager = SmashOptions(confidence=0.01)
    drafted = jax_smash.generate(model, ["Once there"], method="hamburger", smash=eager, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    assert drafted[0].drafted.tried[0] > 0
    card = (drafter / "README.md").read_text()
    assert "| Tokens of a draft | at most 2 |" in card
    assert "| Tokens that it can say | 200, " in card


@pytest.mark.slow
def test_dflash_learns_beside_its_target_and_drafts_for_it_alone(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("mlp_width", "optimiser", "batch_size", "length", "steps")}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_layers": 1, "block_size": 3, "anchors": 4}))
    places = ("dflash", tmp_path / "config.json", root / "packed", str(root / "base"))
    main(*places, tmp_path / "run", **RUN)
    lines = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    for place in (1, 2):
        shares = [lines[-1][f"top{rank}_{place}"] for rank in range(1, 6)]
        assert shares == sorted(shares)
    model, drafter = jax_smash.load(root / "base"), tmp_path / "run/drafter"
    options, draft = {"max_new_tokens": 6, "slots": 64}, DraftOptions(drafter=drafter)
    drafted = jax_smash.generate(model, ["Once there"], method="dflash", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    made = load_dflash(drafter)
    assert (made.base_fingerprint, made.trained_length) == (model.fingerprint, CONFIG["length"])
    assert (
        "| Blocks | 3 entries, place k counting exp(−k / 7); 4 a row at most |" in (drafter / "README.md").read_text()
    )


@pytest.mark.slow
def test_eagle_1_learns_the_targets_hidden_states_and_drafts_for_it_alone(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("mlp_width", "optimiser", "batch_size", "length", "steps")}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"test_steps": 2}))
    places = ("eagle1", tmp_path / "config.json", root / "packed", str(root / "base"))
    main(*places, tmp_path / "run", **RUN | {"save_every": 100})
    lines = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line]
    for name in ("loss", "distance_1", "loss_1"):
        assert lines[-1][name] < lines[0][name]
    for depth in (1, 2):
        shares = [lines[-1][f"top{rank}_{depth}"] for rank in range(1, 6)]
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] <= 1
    model, drafter = jax_smash.load(root / "base"), tmp_path / "run/drafter"
    made = load_eagle1(drafter)
    assert (made.base_fingerprint, made.trained_length) == (model.fingerprint, CONFIG["length"])
    assert "| Loss | 1 of the features' distance, 0.1 of the cross-entropy |" in (drafter / "README.md").read_text()
    options = {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=drafter, tree="chain-2")
    drafted = jax_smash.generate(model, ["Once there"], method="eagle", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": -0.1}, "noise must be at least 0 and finite; got -0.1"),
        ({"prediction_share": -1}, "prediction_share must be at least 0 and finite; got -1"),
        ({"feature_share": 0, "prediction_share": 0}, "feature_share or prediction_share must be above 0"),
        ({"test_steps": 16}, "test_steps must be from 1 to less than the row's 16; got 16"),
        ({"step_decay": 0}, "step_decay must be above 0 and at most 1; got 0"),
        ({"head_size": 999}, "head_size must be from 0 to the vocabulary's 290; got 999"),
    ],
)
def test_a_configuration_of_eagle_1_that_does_not_fit_is_refused(root, tmp_path, changes, message):
    fields = {name: CONFIG[name] for name in ("mlp_width", "optimiser", "batch_size", "length", "steps")}
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(ValueError, match=message):
        main("eagle1", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_best_step_is_exported_and_not_the_last(root, tmp_path):
    """A learning rate that grows until it does harm makes the first evaluation the best."""
    optimiser = {"warmup": 5, "learning_rate": 3.0, "clip": 1000.0}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"optimiser": optimiser}))
    places = ("eagle", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run")
    main(*places, evaluate_every=1, mesh="data=2")
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    scores = {line["step"]: line["choice_score"] for line in lines if "choice_score" in line}
    assert [*scores] == [1, 2, 3, 4, 5, 6]
    best = max(scores, key=scores.get)
    assert best < 6
    (held_out,) = [line for line in lines if "held_out_loss" in line]
    assert held_out["step"] == best
    assert f"| Chosen | step {best}: " in (tmp_path / "run/drafter/README.md").read_text()
    exported = load_eagle(tmp_path / "run/drafter").params
    exported, _ = nnx.split_state(exported, nnx.Param, ...)
    like = jax.tree.map(lambda x: x.astype(jnp.float32), {"drafter": exported})
    kept = chosen_params(tmp_path / "run", like)
    for x, y in zip(jax.tree.leaves(kept), jax.tree.leaves(exported), strict=True):
        np.testing.assert_array_equal(x.astype(jnp.bfloat16), y)


def test_documents_that_choose_are_neither_trained_on_nor_reported(root):
    rows = EaglePart.from_files(root / "config.json", root / "packed", root / "base").reply_rows
    rows = dataclasses.replace(rows, length=64)  # Of whole documents: their pieces may be alike.

    def documents(sets):
        found = set()
        for batch in (batch for batches in sets.values() for batch in batches):
            for row, segment in zip(*np.nonzero(batch.segments), strict=True):
                found.add(tuple(batch.tokens[row][batch.segments[row] == batch.segments[row][segment]].tolist()))
        return found

    choice, held_out = documents(rows.choice()), documents(rows.held_out())
    both = documents(dataclasses.replace(rows, choice_share=0.0).held_out())
    assert choice
    assert held_out
    assert not choice & held_out
    assert choice | held_out == both


def test_rows_that_leave_nothing_to_choose_by_are_refused(root, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"choice_share": 1e-9, "steps": 2}))
    places = ("eagle", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"must hold held-out documents .* 0 choose: pack with a larger held_out"):
        main(*places, mesh="data=1")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_medusa_2_ends_with_an_adapter_of_its_target_and_heads_for_it_alone(root, tmp_path):
    fields = {name: CONFIG[name] for name in ("optimiser", "batch_size", "length")} | {"num_heads": 2, "steps": 4}
    joint = {"base": "lora", "rank": 2, "heads_alone": 1, "targets": ["w_qkv", "w_down", "head"], "choice_share": 0}
    (tmp_path / "config.json").write_text(json.dumps(fields | joint))
    output = tmp_path / "run"
    main("medusa", tmp_path / "config.json", root / "packed", str(root / "base"), output, mesh="data=2")
    exported = output / "drafter"
    model, old = jax_smash.load(exported / "adapter"), jax_smash.load(root / "base")
    assert load_medusa(exported).base_fingerprint == model.fingerprint != old.fingerprint
    options = {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=exported, tree="chain-2")
    drafted = jax_smash.generate(model, ["Once there"], method="medusa", draft=draft, **options)
    assert drafted[0].token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    with pytest.raises(ValueError, match="was trained for a target whose weights have fingerprint"):
        jax_smash.generate(old, ["Once there"], method="medusa", draft=draft, **options)
    card = (exported / "README.md").read_text()
    assert "| Chosen | the last step |" in card
    assert not (output / "best").exists()
    assert "| Trained with the target | low-rank changes of w_qkv, w_down, head, rank 2" in card
    assert f"fingerprint of its weights {model.fingerprint} |" in card


def test_training_data_without_answers_are_refused(root, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"reply_begins": "<|im_start|>assistant"}))
    places = ("eagle", tmp_path / "config.json", root / "packed", str(root / "base"), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"packed must hold replies to train on, behind '<\|im_start\|>assistant'; got"
    ):
        main(*places)
    assert not (tmp_path / "run").exists()


def test_fields_of_a_training_file_are_changed_by_name():
    given = changes_of(["gram=1", "residual_heads=false", "gram_encoder=layer", "labels=text", "head_decay=0.5"], {})
    assert given == {
        "gram": 1,
        "residual_heads": False,
        "gram_encoder": "layer",
        "labels": "text",
        "head_decay": 0.5,
    }
    assert changes_of(["taps=[2,15,27]", "num_layers=1"], {}) == {"taps": [2, 15, 27], "num_layers": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gram"], "change must be NAME=VALUE, each of a field of the training file, once; got 'gram'"),
        (["taps=[2,x]"], "change of taps must be a list in brackets; got '\\[2,x\\]'"),
        (["taps=[2.0,15,27]"], r"taps must be a list of whole numbers; got \[2\.0, 15, 27\]"),
        (["gram=1", "gram=2"], "change must be NAME=VALUE, .*; got 'gram=2'"),
        (["model=tiny"], "change must be NAME=VALUE, .*; got 'model=tiny'"),
        (["batch_size=1"], "change must not be of batch_size, which has an option of its own: --batch-size"),
        (["test_steps=0"], "is not a training file: test_steps must be from 1"),
        (["trigram=3"], "is not a training file: unknown field 'trigram'"),
        (["base=lora", "path=x", "config=y"], "is not a training file: unknown field '(base|path|config)'"),
        (["optimiser.warmpu=3"], "is not a training file: unknown field 'optimiser.warmpu'"),
        (["optimiser.warmup=-3"], "is not a training file: .* warmup, clip_value >= 0, .*warmup=-3"),
    ],
)
def test_changes_that_are_none_are_refused(root, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        main("eagle", root / "config.json", root / "packed", str(root / "base"), tmp_path / "run", change=tuple(words))
    assert not (tmp_path / "run").exists()
