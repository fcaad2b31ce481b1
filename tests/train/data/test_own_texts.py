import dataclasses
import json
import signal

import numpy as np
import pytest

from jax_smash.models.transformer import random_params
from tests.hosts import Hosts
from tests.train.outputs import losses, newest
from tests.train.run.test_settings import FIELDS, MODEL
from train.base import main
from train.data.corpus import Corpus, Source
from train.data.own_texts import MOST, NEW, own_texts, repeats
from train.data.rows import Packed, training_batches
from train.pack import pack_corpus
from train.parts.language_model.part import LanguageModel
from train.run.batches import Share
from train.run.options import RunPlan
from train.run.settings import load_settings, with_special_tokens
from train.tokenizer import save_tokenizer, train_tokenizer

LENGTH = 176


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Packed sentences, their tokenizer, and the configuration of a run with own texts."""
    root = tmp_path_factory.mktemp("own")
    stories = [{"text": f"The fox number {i} ran to the den. It sat there."} for i in range(400)]
    (root / "a.jsonl").write_text("".join(json.dumps(story) + "\n" for story in stories))
    save_tokenizer(train_tokenizer([story["text"] for story in stories], 290), root / "tokenizer")
    task = Source("state", task="state", count=8, lengths=(160,))
    corpus = Corpus(sources=(Source("text", paths=("a.jsonl",)), task), held_out=0.1)
    pack_corpus(corpus, root, root / "tokenizer", root / "packed")
    model = MODEL | {"max_positions": 256, "num_layers": 1}
    own = {"length": LENGTH, "batch_size": 16, "own_rows": 8, "own_every": 2, "circle_weight": 3.0, "steps": 4}
    (root / "config.json").write_text(json.dumps(FIELDS | {"model": model} | own))
    return root


@pytest.fixture(scope="module")
def written(root):
    """Batches with own texts, their rows of data alone, and the weights that wrote them."""
    settings = with_special_tokens(load_settings(root / "config.json"), root / "tokenizer")
    packed = Packed(root / "packed", root / "tokenizer")
    graphdef, params = random_params(settings.model, 0)

    def data():
        return training_batches(packed, length=LENGTH, batch_size=16, seed=0)

    return own_texts(settings, data(), packed, graphdef), data(), params


def test_tokens_that_complete_a_run_said_before_are_marked():
    assert repeats([1, 2, 3, 4, 1, 2, 3, 4, 5], 0) == [False] * 7 + [True, False]
    assert repeats([7, 7, 7, 7, 7, 7], 0) == [False] * 4 + [True, True]
    assert repeats([7, 7, 7, 7, 7, 7], 5) == [False] * 5 + [True]
    assert not any(repeats([1, 2, 3], 0))


def test_the_last_rows_hold_the_models_texts_and_the_others_stay(written):
    own, data, params = written
    own.refresh(params, 0)
    for _ in range(2):
        batch, plain = next(own), next(data)
        for mixed, before in zip(batch, plain, strict=True):
            np.testing.assert_array_equal(mixed[:8], before[:8])
        weights = batch.weights[8:]
        assert set(np.unique(weights)) == {-3.0, 0.0}
        assert (batch.targets[8:][:, : NEW // 2] != 0).any(1).all()
        # A text stands at the row's beginning; what it was begun with is at most MOST tokens.
        np.testing.assert_array_equal(batch.targets[8:, :MOST], batch.tokens[8:, 1 : MOST + 1])
        for tokens, row in zip(batch.tokens[8:], weights, strict=True):
            marked = np.flatnonzero(row)
            runs = {tuple(tokens[i : i + 4]) for i in range(len(tokens) - 4)}
            assert all(tuple(tokens[i - 2 : i + 2]) in runs for i in marked[:-1])


def test_texts_are_written_anew_only_when_it_is_time(written):
    own, _, params = written
    own.refresh(params, 2)
    first = [next(own).tokens[8:], next(own).tokens[8:]]
    own.refresh(params, 3)
    with pytest.raises(IndexError):
        next(own)
    own.refresh(params, 2)
    np.testing.assert_array_equal(next(own).tokens[8:], first[0])
    own.refresh(params, 4)
    assert (next(own).tokens[8:] != first[0]).any()


@pytest.mark.slow
def test_a_resumed_run_has_the_weights_of_an_undisturbed_one(root, tmp_path):
    given = (root / "config.json", root / "packed", root / "tokenizer")
    main(*given, tmp_path / "whole", save_every=2)
    main(*given, tmp_path / "parts", save_every=2, until=2)
    main(*given, tmp_path / "parts", save_every=2, resume=True)
    whole, parts = ((tmp_path / run / "model/model.safetensors").read_bytes() for run in ("whole", "parts"))
    assert whole == parts


def test_what_could_not_be_resumed_is_refused(root, tmp_path):
    given = (root / "config.json", root / "packed", root / "tokenizer", tmp_path / "run")
    with pytest.raises(ValueError, match="own_every must divide the steps between checkpoints"):
        main(*given, save_every=3)
    assert not (tmp_path / "run").exists()


def test_a_run_is_saved_at_steps_after_which_texts_are_written_anew(root):
    part = LanguageModel.from_files(root / "config.json", root / "packed", root / "tokenizer")
    assert RunPlan(save_every=4).loop(part).saved_by == 2
    plain = dataclasses.replace(part, settings=dataclasses.replace(part.settings, own_rows=0))
    assert RunPlan(save_every=3).loop(plain).saved_by == 1


@pytest.mark.slow
def test_hosts_that_are_told_to_end_save_a_step_that_the_run_goes_on_from(root, tmp_path):
    fields = json.loads((root / "config.json").read_text()) | {"own_every": 20, "steps": 2000}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    output, data = tmp_path / "run", ["--packed", root / "packed", "--tokenizer", root / "tokenizer"]
    words = ["-m", "train.base", "--config", tmp_path / "config.json", *data, "--output", output, "--mesh", "data=2"]
    words += ["--save-every", 1000, "--evaluate-every", 1000, "--log-every", 1]
    hosts = Hosts(words)
    hosts.kill_when(1, lambda: (output / "metrics.jsonl").exists() and losses(output), by=signal.SIGTERM)
    for process in hosts.ended():
        assert process.status == 1
        assert f"told to end; step {newest(output)} of 2000 is saved" in process.errors
    assert newest(output) > 0
    assert newest(output) % 20 == 0
    for process in Hosts([*words, "--resume", "--until", newest(output) + 20]).ended():
        assert process.status == 0, process.errors


def test_each_host_has_its_share_of_the_models_texts(root, written):
    part = LanguageModel.from_files(root / "config.json", root / "packed", root / "tokenizer")

    def first(share):
        rows = part.rows(1, share)
        rows.refresh(written[2], 0)
        return next(rows.batches)

    whole, halves = first(Share()), [first(Share(host, 2)) for host in range(2)]
    for expected, *found in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), expected)
    assert (halves[1].weights <= 0).all()  # The second host's rows are the model's own.
    assert (halves[0].weights >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2", "fsdp=2"])
def test_two_hosts_train_on_own_texts_as_one_does(root, tmp_path, mesh):
    given = {"config": root / "config.json", "packed": root / "packed", "tokenizer": root / "tokenizer"}
    main(*given.values(), tmp_path / "alone", mesh=mesh, save_every=2, log_every=1)
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    words += ["--output", tmp_path / "both", "--mesh", mesh, "--save-every", 2, "--log-every", 1]
    for process in Hosts(["-m", "train.base", *words]).ended():
        assert process.status == 0, process.errors
    alone, both = (losses(tmp_path / run) for run in ("alone", "both"))
    assert both == pytest.approx(alone, abs=1e-5)
