"""A base's states on disk: what drafters learn from them is what they learn from the base."""

import itertools
import json
import os
import shutil
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints.medusa import load_medusa
from jax_smash.sharding import make_mesh
from tests.checkpoints import LLAMA, write_checkpoint
from tests.hosts import Hosts
from tests.train.corpus_files import make_packed
from train.data.rows import Packed
from train.data.states import Places, States, read_record
from train.drafter import KINDS
from train.drafter import main as train_drafter
from train.parts.drafter.kept import every_batch
from train.run.batches import Share
from train.states import main

RUN = {"optimiser": {"warmup": 1, "learning_rate": 0.003}, "batch_size": 4, "length": 16, "steps": 2}
CONFIGS = {
    "eagle": RUN | {"head_size": 200, "mlp_width": 32, "test_steps": 2, "taps": [0, 2]},
    "eagle1": RUN | {"mlp_width": 32},
    "medusa": RUN | {"num_heads": 2},
    "chimera": RUN | {"mlp_width": 32, "decoding_heads": 2},
    "dflash": RUN | {"mlp_width": 32, "num_layers": 1, "taps": [0, 2], "block_size": 3, "anchors": 4},
    "micro": RUN | {"micro_steps": 3, "tapped_layers": [1]},
}
"""Of each kind; a kind that is new needs one here."""

BASE = {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1}
KEPT = {"dtype": "float32", "batch_size": 8, "mesh": "data=1"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Packed shards, a base with their tokenizer, configurations, and the base's states in float32."""
    folder = tmp_path_factory.mktemp("states")
    _, tokenizer = make_packed(folder, shard_tokens=400)
    write_checkpoint(folder / "base", BASE)
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / "base")
    for kind, config in CONFIGS.items():
        (folder / f"{kind}.json").write_text(json.dumps(config))
    main(str(folder / "base"), folder / "packed", folder / "kept", "eagle", folder / "eagle.json", taps=(1,), **KEPT)
    return folder


def made(root, kind, states=None):
    """Returns the part of a kind, beside the base or beside its states."""
    return KINDS[kind].from_files(root / f"{kind}.json", root / "packed", root / "base", states)


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_beside_kept_states_are_those_beside_the_base(root, kind):
    mesh, found = make_mesh("data=1"), []
    params = made(root, kind).begin(mesh)
    for states in (None, root / "kept"):
        part = made(root, kind, states)
        batch, frozen = next(part.rows(1, Share()).batches), part.frozen(mesh).params
        measured = jax.jit(part.objective())
        total, tally = measured({**frozen, **params}, batch)
        means = {name: float(total / jnp.maximum(of, 1)) for name, (total, of) in tally.means.items()}
        found.append((float(total / tally.count), means, batch, frozen))
    (loss, means, batch, frozen), (kept_loss, kept_means, kept_batch, without) = found
    np.testing.assert_array_equal(batch.tokens, kept_batch.tokens)
    assert set(kept_batch.taps) == set(part.settings.read_taps)
    assert loss == pytest.approx(kept_loss, rel=1e-5)
    assert means == pytest.approx(kept_means, rel=1e-5)
    assert sum(x.size for x in jax.tree.leaves(without)) < 0.7 * sum(x.size for x in jax.tree.leaves(frozen))
    # Other states would have told: the comparison can fail.
    other = kept_batch._replace(hidden=kept_batch.hidden[::-1])
    total, tally = measured({**without, **params}, other)
    assert abs(float(total / tally.count) - loss) > 1e-3
    # So would other predictions: those that are kept are read.
    other = kept_batch._replace(likeliest=kept_batch.likeliest[::-1])
    _, tally = measured({**without, **params}, other)
    assert {name: float(total / jnp.maximum(of, 1)) for name, (total, of) in tally.means.items()} != pytest.approx(
        means, rel=1e-3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_that_were_not_kept_are_computed(root, kind):
    """As of states that were kept before predictions were."""
    mesh = make_mesh("data=1")
    part = made(root, kind, root / "kept")
    params, measured = {**part.frozen(mesh).params, **made(root, kind).begin(mesh)}, jax.jit(part.objective())
    batch = next(part.rows(1, Share()).batches)
    found = measured(params, batch)
    for x, y in zip(*map(jax.tree.leaves, (found, measured(params, batch._replace(likeliest=None)))), strict=True):
        np.testing.assert_array_equal(x, y)


def test_states_of_held_out_batches_are_read_when_the_batches_are(root, monkeypatch):
    part, read, beside = made(root, "medusa", root / "kept"), [], States.beside
    monkeypatch.setattr(States, "beside", lambda *args: read.append(1) or beside(*args))
    sets = part.held_out(0)
    assert (len(read), any(map(bool, sets.values()))) == (0, True)
    batches, again = ([batch for batches in sets.values() for batch in batches] for _ in range(2))
    assert len(read) == 2 * len(batches)
    for x, y in zip(jax.tree.leaves(batches), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_is_kept_in_bfloat16_is_rounded_once(root, tmp_path):
    given = {"taps": (0, 1, 2), "length": 16, "batch_size": 8, "mesh": "data=2"}
    main(str(root / "base"), root / "packed", tmp_path / "kept", **given)
    packed = Packed(root / "packed", root / "base")
    batch, entries = next(every_batch(packed, Places(packed), 16, 8))
    wide, narrow = (States(f / "kept", packed, (1, 2)).beside(batch, entries) for f in (root, tmp_path))
    there = batch.segments > 0
    for x, y in zip(
        jax.tree.leaves((wide.hidden, wide.taps)), jax.tree.leaves((narrow.hidden, narrow.taps)), strict=True
    ):
        assert y.dtype == jnp.bfloat16
        assert not x[~there].any()
        assert np.abs(x[there]).min(axis=-1).max() > 0
        np.testing.assert_allclose(x, y.astype(np.float32), rtol=2**-8, atol=1e-6)
    assert read_record(tmp_path / "kept").taps == (0, 1, 2)


def test_a_run_that_was_cut_off_goes_on_where_it_stood(root, tmp_path, capsys):
    packed, work = Packed(root / "packed", root / "base"), tmp_path / ".kept.part"
    shutil.copytree(root / "kept", work)
    starts = Places(packed).starts
    batches = list(every_batch(packed, Places(packed), 16, 8))
    assert len(batches) > 3
    for name, start in starts.items():
        kept = np.load(work / f"{name}.hidden.npy", mmap_mode="r+")
        for number, (batch, entries) in enumerate(batches):
            here = entries[batch.segments > 0] - start
            here = here[(here >= 0) & (here < len(kept))]
            kept[here] = 0 if number > 1 else 7  # Nobody reads the first two batches again.
    given = (str(root / "base"), root / "packed", tmp_path / "kept", "eagle", root / "eagle.json")
    with pytest.raises(ValueError, match=r"was made with taps \(0, 1, 2\); got \(0, 2\)"):
        main(*given, resume=True, **KEPT)  # Also one that was cut off before it saved where it stood.
    (work / "progress.json").write_text('{"batches": 2, "batch_size": 8}')
    with pytest.raises(FileExistsError, match="was left by a run that was cut off: --resume goes on"):
        main(*given, taps=(1,), **KEPT)
    with pytest.raises(ValueError, match=r"was made with taps \(0, 1, 2\); got \(0, 2\)"):
        main(*given, resume=True, **KEPT)
    main(*given, taps=(1,), resume=True, save_every=2, **KEPT)
    assert not work.exists()
    assert "4 batches kept, " in capsys.readouterr().err
    main(*given, taps=(1,), resume=True, **KEPT)
    assert "kept is whole: all its states were there before" in capsys.readouterr().out
    whole, found = files(root / "kept"), files(tmp_path / "kept")
    assert {*whole} == {*found}
    first = [entries[batch.segments > 0] for batch, entries in batches[:2]]
    for name, start in starts.items():
        x, y = (np.load(folder / f"{name}.hidden.npy") for folder in (root / "kept", tmp_path / "kept"))
        early = np.concatenate(first) - start
        early = early[(early >= 0) & (early < len(x))]
        assert (y[early] == 7).all()
        later = np.setdiff1d(np.arange(len(x)), early)
        np.testing.assert_allclose(x[later], y[later], rtol=1e-5, atol=1e-6)


def test_the_size_is_told_and_a_disk_without_room_gets_nothing(root, tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(9, 9, 1000))
    with pytest.raises(OSError, match=r"no room for states: [\d,]+ bytes are needed, 1,000 are free"):
        main(str(root / "base"), root / "packed", tmp_path / "kept", length=16, mesh="data=1")
    assert not list(tmp_path.iterdir())
    tokens = Places(Packed(root / "packed", root / "base")).tokens
    size = tokens * (2 * LLAMA["hidden_size"] + 4)
    said = f"{tokens:,} tokens of hidden, likeliest (bfloat16): {size:,} bytes; 1,000 are free"
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_a_drafter_is_trained_beside_kept_states_and_is_one_for_the_base(root, tmp_path):
    places = ("medusa", root / "medusa.json", root / "packed", str(root / "base"), tmp_path / "run")
    train_drafter(*places, states=root / "kept", mesh="data=2")
    assert load_medusa(tmp_path / "run/drafter").base_fingerprint == read_record(root / "kept").base_fingerprint
    assert "states kept in float32" in (tmp_path / "run/drafter/README.md").read_text()


def test_states_of_another_base_other_taps_or_other_data_are_refused_by_name(root, tmp_path):
    kept, config = root / "kept", tmp_path / "config.json"

    def refused(message, kind="eagle", packed="packed", base="base", states=kept, **changes):
        config.write_text(json.dumps(CONFIGS[kind] | changes))
        with pytest.raises((ValueError, OSError), match=message):
            train_drafter(kind, config, root / packed, str(root / base), tmp_path / "run", states=states)
        assert not (tmp_path / "run").exists()

    if not (root / "other").exists():
        shutil.copytree(root / "base", root / "other")
        write_checkpoint(root / "other", BASE, seed=5)
        shutil.copytree(root / "packed", root / "changed")
        index = json.loads((root / "changed/index.json").read_text()) | {"sources_sha256": "0" * 64}
        (root / "changed/index.json").write_text(json.dumps(index))
    refused("was made by another base, whose weights have fingerprint .*; those of .*other have", base="other")
    if not (root / "turned").exists():
        shutil.copytree(root / "base", root / "turned")
        settings = json.loads((root / "turned/config.json").read_text()) | {"rope_theta": 77.0}
        (root / "turned/config.json").write_text(json.dumps(settings))
    refused("was made by a base of another configuration than that of .*turned", base="turned")
    refused("was made of other data: the rows packed in it have hash .*changed has 0000", packed="changed")
    refused("was made of pieces of 16 tokens; the length of a row is 12", length=12)
    train = read_record(kept).__dict__ | {"taps": [0]}
    shutil.copytree(kept, tmp_path / "few")
    (tmp_path / "few/states.json").write_text(json.dumps(train))
    refused("few must hold tap 2 of the base; it holds 0", states=tmp_path / "few")
    refused(r"must be a folder that train\.states made; it has no states\.json", states=tmp_path)
    name = next(path for path in sorted((tmp_path / "few").glob("*.tap-0.npy")))
    os.truncate(name, 200)
    (tmp_path / "few/states.json").write_text(json.dumps(train | {"taps": [0, 2]}))
    refused(r"tap-0\.npy cannot be read", states=tmp_path / "few")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"taps": (9,), "length": 16}, "taps must be from 0 to the base's 2 layers; got 9"),
        ({"length": 10_000}, "length must be from 1 to the base's"),
        ({}, "length must be that of config, or be given as length; got both or neither"),
        ({"kind": "eagle"}, "kind and config must be given together"),
        ({"kind": "falcon", "config": "c.json"}, "kind must be one of"),
        ({"length": 16, "dtype": "int8"}, "dtype must be one of float32, bfloat16; got 'int8'"),
        ({"length": 16, "coordinator": "host:1"}, "no --num-processes and no --process-id"),
        ({"length": 16, "batch_size": 0}, "batch_size and save_every must be at least 1; got 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(root, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        main(str(root / "base"), root / "packed", tmp_path / "kept", **given)
    assert not list(tmp_path.iterdir())


def test_states_of_a_target_that_changes_are_not_kept(root, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["medusa"] | {"base": "lora"}))
    with pytest.raises(ValueError, match="states can be kept of a target that stays as it is alone; base is 'lora'"):
        main(str(root / "base"), root / "packed", tmp_path / "kept", "medusa", tmp_path / "config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.slow
def test_a_run_does_not_go_on_beside_states_of_another_precision(root, tmp_path):
    places = ("medusa", root / "medusa.json", root / "packed", str(root / "base"), tmp_path / "run")
    train_drafter(*places, states=root / "kept", mesh="data=1", until=1)
    shutil.copytree(root / "kept", tmp_path / "kept")
    told = json.loads((root / "kept/states.json").read_text()) | {"products": "bfloat16"}
    (tmp_path / "kept/states.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="was begun with states float32 with predictions; got float32 of bfloat16 pro"):
        train_drafter(*places, states=tmp_path / "kept", mesh="data=1", resume=True)


@pytest.fixture
def hosts_keep(root, tmp_path):
    """Has two processes keep states in a folder; returns what became of them."""

    def keep(folder, *words, each=((), ())):
        program = ["-m", "train.states", "--base", root / "base", "--data", root / "packed", "--output", folder]
        program += ["--kind", "eagle", "--config", root / "eagle.json", "--taps", 1, "--dtype", "float32"]
        return Hosts([*program, *words], each=each).ended()

    return keep


@pytest.mark.slow
def test_two_hosts_keep_what_one_does_and_go_on_where_one_stood(root, hosts_keep, tmp_path):
    alone, both, work = tmp_path / "alone", tmp_path / "both", tmp_path / ".both.part"
    given = (str(root / "base"), root / "packed")
    main(*given, alone, "eagle", root / "eagle.json", taps=(1,), **KEPT | {"mesh": "data=2"})
    # Of a run of one that was cut off behind its first two batches.
    shutil.copytree(alone, work)
    packed = Packed(root / "packed", root / "base")
    for name, start in Places(packed).starts.items():
        for _, entries in itertools.islice(every_batch(packed, Places(packed), 16, 8), 2, None):
            for file in work.glob(f"{name}.*.npy"):
                kept = np.load(file, mmap_mode="r+")
                here = entries - start
                kept[here[(here >= 0) & (here < len(kept))]] = 7
    (work / "progress.json").write_text('{"batches": 2, "batch_size": 8}')
    assert files(work) != files(alone)
    first, other = hosts_keep(both, "--mesh", "data=2", "--resume")
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    assert "kept in" in first.output
    assert "kept in" not in other.output
    assert not work.exists()
    assert files(both) == files(alone)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp=2", None])
def test_two_hosts_keep_states_on_any_mesh(root, hosts_keep, tmp_path, mesh):
    first, other = hosts_keep(tmp_path / "both", *(() if mesh is None else ("--mesh", mesh)))
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    assert {*files(tmp_path / "both")} == {*files(root / "kept")}
    for path in root.glob("kept/*.npy"):
        np.testing.assert_allclose(np.load(path), np.load(tmp_path / "both" / path.name), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_hosts_that_would_keep_other_states_are_refused_by_name(hosts_keep, tmp_path):
    for process in hosts_keep(tmp_path / "both", each=[(), ("--products", "bfloat16")]):
        assert process.status == 1
        assert "process 1 of 2 has the states' products bfloat16 where process 0 has float32" in process.errors
        assert "Traceback" not in process.errors
    assert not [*tmp_path.iterdir()]
