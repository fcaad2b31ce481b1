import contextlib
import dataclasses
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from jax_smash.checkpoints.huggingface import read_config
from jax_smash.checkpoints.smasher import load_smasher, tokenizer_sha256
from jax_smash.loading import ASSETS
from jax_smash.sharding import make_mesh, place
from tests.checkpoints import LLAMA, write_checkpoint
from tests.train.corpus_files import make_packed
from tests.train.outputs import newest
from train.data.slot_pieces import Segmented
from train.data.slot_rows import held_out_slot_batches
from train.hamburger import main
from train.parts.hamburger.objective import smash_objective
from train.parts.hamburger.settings import SmashSettings
from train.parts.hamburger.start import first_smash_params
from train.run.metrics import read_metrics
from train.run.optimiser import Optimiser
from train.run.settings import load_kind
from train.run.start import loaded_params
from train.run.step import make_evaluation
from train.segment import main as segment

CONFIG = {
    "micro_layers": 1,
    "micro_steps": 3,
    "optimiser": {"warmup": 1, "learning_rate": 0.003},
    "batch_size": 8,
    "length": 16,
    "steps": 8,
}


RUN = {"save_every": 1, "log_every": 2, "evaluate_every": 4, "mesh": "data=2"}
"""Options of a run in this process."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Packed and segmented shards, the base that segmented them, and a configuration."""
    folder = tmp_path_factory.mktemp("hamburger")
    _, tokenizer = make_packed(folder)
    write_checkpoint(folder / "base", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1})
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / "base")
    segment(
        folder / "packed", str(folder / "base"), folder / "segmented", rule="ratio", ratio=0.99, micro_steps=3,
        prompt_share=0.5, batch_tokens=512,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "sources.md").write_text("Sentences about foxes, written for this test.")
    return folder


@pytest.fixture(scope="module")
def whole(root):
    """A run that nothing disturbs, and what it said."""
    return root / "whole", said(root, root / "whole", **RUN | {"save_every": 100})


def begin(root, output, environment, errors):
    """Begins the same run in a process of its own, which writes its errors to a file."""
    command = [sys.executable, "-m", "train.hamburger", "--config", root / "config.json"]
    command += ["--segmented", root / "segmented", "--init-from", root / "base", "--output", output]
    command += ["--sources", root / "sources.md", "--devices", jax.device_count()]
    command += [word for name, value in RUN.items() for word in (f"--{name.replace('_', '-')}", value)]
    return subprocess.Popen(list(map(str, command)), env=environment, stderr=errors)


def said(root, output, **options):
    """Makes the run, or what is left of it, in this process; returns what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(root / "config.json", root / "segmented", root / "base", output, sources=root / "sources.md", **options)
    return out.getvalue()


def modules_of(folder, base):
    return load_smasher(folder, read_config(base)[0], tokenizer_sha256(base), dtype=jnp.float32)


def test_the_export_loads_as_a_base_and_as_its_modules(root, whole):
    folder = whole[0] / "hamburger"
    model = jax_smash.load(folder, dtype=jnp.float32)
    assert jax_smash.generate(model, ["Once there"], max_new_tokens=3)[0].new_tokens >= 1
    found = modules_of(folder, folder)
    assert (found.config.micro_steps, found.config.micro_layers) == (3, 1)
    # Trained with the modules, it is the base that the segmentation knows still.
    assert modules_of(folder, root / "base").config == found.config
    before, after = loaded_params(root / "base"), loaded_params(folder)
    assert before.sha256 != after.sha256


def test_the_run_says_how_it_went(whole):
    folder, printed = whole
    lines = read_metrics(folder / "metrics.jsonl")
    measured = [line for line in lines if "cross_entropy" in line]
    assert [line["step"] for line in measured] == [2, 4, 6, 8]
    assert measured[-1]["loss"] < measured[0]["loss"]
    assert 1 < measured[0]["tokens_a_slot"] < 3
    assert all(line["further_loss"] > 0 and line["first_loss"] > 0 and line["stop_loss"] > 0 for line in measured)
    for line in measured:
        # The stop head counts a half. Its sum is over the targets that replies have, the loss's mean over all.
        targets_of_replies = (line["loss"] - line["cross_entropy"]) / (0.5 * line["stop_loss"])
        assert 0.45 < targets_of_replies < 0.9
    assert {*next(line for line in lines if "held_out" in line)["held_out"]} == {"stories", "chats"}
    tokens = int(printed.split("trained on ")[1].split(" tokens")[0].replace(",", ""))
    # Eight steps of eight rows of sixteen slots, some of them empty, some with several tokens.
    assert 0.5 * 1024 < tokens < 2 * 1024
    assert f"{tokens:,}" in (folder / "hamburger/README.md").read_text()
    assert (folder / "loss.png").stat().st_size > 1000


def test_the_card_states_the_losses_of_the_stored_weights(root, whole):
    folder = whole[0] / "hamburger"
    card = (folder / "README.md").read_text()
    assert "Sentences about foxes" in card
    settings = load_kind(SmashSettings, whole[0] / "settings.json").measured()
    base, found = loaded_params(folder), modules_of(folder, folder)
    objective = smash_objective(base.graphdef, found.definition.graphdef, settings)
    rows = held_out_slot_batches(Segmented(root / "segmented", folder), room=settings.room, micro_steps=3, batch_size=8)
    params = place({"base": base.params, "smasher": found.params}, make_mesh("data=8"))
    loss, by_set, _ = make_evaluation(objective, make_mesh("data=8"))(params, rows)
    assert f"| {loss:.4f} nats" in card
    assert f"stories {by_set['stories']:.2f}" in card


def test_modules_tell_the_weights_that_they_were_trained_with(root, whole):
    folder = whole[0] / "hamburger"
    own, told = jax_smash.load(folder).fingerprint, modules_of(folder, folder).base_fingerprint
    assert told == own != jax_smash.load(root / "base").fingerprint
    card = (folder / "README.md").read_text()
    assert f"| Base | fingerprint of its weights {told} |" in card
    commit = r"commit [0-9a-f]{40}( with changes)?|jax_smash \S+, outside a repository"
    assert re.search(rf"^\| Code \| ({commit}); Python 3\.\S+, jax \S+, jaxlib ", card, re.MULTILINE)
    assert jax_smash.load(root / "base", modules=folder).fingerprint == own
    alone = shutil.copytree(folder, folder.parent / "alone", ignore=shutil.ignore_patterns("model.*", "config.json"))
    with pytest.raises(ValueError, match="were trained with a base whose weights have fingerprint"):
        jax_smash.load(root / "base", modules=alone)


def test_tokens_of_replies_are_counted(root, whole):
    found = modules_of(whole[0] / "hamburger", root / "base")
    index = json.loads((root / "segmented/index.json").read_text())
    replies = sum(c["reply_tokens"] for n, c in index["segmentation"]["statistics"].items() if n.startswith("train-"))
    assert found.token_counts.sum() == replies
    assert found.token_counts.shape == (290,)


@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_same_weights(root, whole, same_programs, tmp_path):
    with (tmp_path / "errors").open("w") as errors:
        process = begin(root, tmp_path / "run", same_programs(), errors)
        while newest(tmp_path / "run") < 3 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 3 <= newest(tmp_path / "run") < 8, (tmp_path / "errors").read_text()[-2000:]
    resumed = said(root, tmp_path / "run", resume=True, **RUN)
    assert resumed.replace(str(tmp_path / "run"), "") == whole[1].replace(str(whole[0]), "")
    for name in ("smasher.safetensors", "smasher.json", "model.safetensors"):
        assert (tmp_path / "run/hamburger" / name).read_bytes() == (whole[0] / "hamburger" / name).read_bytes()
    assert card_of(tmp_path / "run") == card_of(whole[0])


def card_of(run):
    """Returns the lines of a card but the one on the code: its files may change while the tests run."""
    lines = (run / "hamburger/README.md").read_text().splitlines()
    return [line for line in lines if not line.startswith("| Code |")]


def train_here(root, output, changes, **options):
    """Trains in this process, with some fields of the configuration changed."""
    file = output.parent / f"{output.name}.json"
    file.write_text(json.dumps(CONFIG | changes))
    main(file, root / "segmented", root / "base", output, **options)
    return output / "hamburger"


@pytest.mark.slow
def test_a_frozen_base_is_not_exported_and_means_need_no_weights(root, tmp_path):
    changes = {
        "base": "frozen",
        "embedder": "mean",
        "tapped_layers": [1],
        "steps": 2,
        "further_share": 0.5,
        "accumulate": 2,
    }
    folder = train_here(root, tmp_path / "run", changes, mesh="data=2")
    assert {file.name for file in folder.iterdir()} == {"README.md", "smasher.json", "smasher.safetensors"}
    found = modules_of(folder, root / "base")
    assert (found.config.embedder, found.config.tapped_layers) == ("mean", (1,))
    assert found.base_fingerprint == jax_smash.load(root / "base").fingerprint


@pytest.mark.slow
def test_low_rank_changes_are_exported_merged(root, tmp_path):
    changes = {"base": "lora", "rank": 2, "steps": 2}
    folder = train_here(root, tmp_path / "run", changes, mesh="fsdp=2")
    before, after = loaded_params(root / "base").params, loaded_params(folder).params
    paths = jax.tree_util.tree_flatten_with_path(before)[0]
    changed = {
        jax.tree_util.keystr(path, simple=True, separator=".").split(".")[0]
        for (path, a), b in zip(paths, jax.tree.leaves(after), strict=True)
        if not np.array_equal(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))
    }
    assert changed == {"layers"}


def write_strangers(root, folder):
    """Writes two bases beside the right one: `wider` is of another shape, `other` has another tokenizer."""
    shutil.copytree(root / "base", folder / "other")
    text = (root / "base/tokenizer.json").read_text()
    (folder / "other/tokenizer.json").write_text(text.replace("<|pad|>", "<|fill|>"))
    assert "<|fill|>" not in text
    write_checkpoint(
        folder / "wider", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1, "intermediate_size": 104}
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(root / "base" / name, folder / "wider")


@pytest.mark.slow
def test_predictions_are_drawn_to_those_of_a_teacher(root, whole, tmp_path):
    """Those of another base than the one that the run begins with, at the same weights."""
    teacher = whole[0] / "hamburger"
    changes, options = {"steps": 2, "kl_weight": 0.5}, {"log_every": 1, "mesh": "data=2"}
    folder = train_here(root, tmp_path / "taught", changes, teacher=teacher, **options)
    train_here(root, tmp_path / "alone", changes, **options)
    taught, alone = (read_metrics(tmp_path / run / "metrics.jsonl")[0] for run in ("taught", "alone"))
    assert taught["cross_entropy"] == alone["cross_entropy"]
    assert abs(taught["divergence"] - alone["divergence"]) > 1e-3
    sha256 = loaded_params(teacher).sha256
    assert f"a teacher, SHA-256 of its weights {sha256} | counts 0.5" in (folder / "README.md").read_text()
    assert "the base that the run began with | counts 0.5" in (tmp_path / "alone/hamburger/README.md").read_text()
    with pytest.raises(ValueError, match=r"taught was begun with teacher_sha256 '?[0-9a-f]{64}'?; got"):
        train_here(root, tmp_path / "taught", changes, resume=True, **options)


def test_a_teacher_of_another_shape_or_tokenizer_is_refused(root, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"kl_weight": 0.5}))
    write_strangers(root, tmp_path)
    for teacher, message in (
        ("other", r"the teacher must have the base's tokenizer; .*other has another"),
        ("wider", r"the teacher must have the base's shape; .*wider has another"),
    ):
        with pytest.raises(ValueError, match=message):
            main(
                tmp_path / "config.json",
                root / "segmented",
                root / "base",
                tmp_path / "run",
                teacher=tmp_path / teacher,
            )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_trained_modules_go_on_learning(root, whole, tmp_path):
    folder = whole[0] / "hamburger"
    began, settings = loaded_params(folder), json.loads((whole[0] / "settings.json").read_text())
    options = {"modules": folder, "steps": 3, "log_every": 1, "mesh": "data=2"}
    main(root / "config.json", root / "segmented", folder, tmp_path / "run", **options)
    assert json.loads((tmp_path / "run/settings.json").read_text())["modules_sha256"]
    assert not settings["modules_sha256"]
    first, anew = (read_metrics(run / "metrics.jsonl")[0] for run in (tmp_path / "run", whole[0]))
    assert first["further_loss"] < anew["further_loss"] - 0.1
    fields = {name: settings[name] for name in ("micro_layers", "micro_steps", "tokenizer_sha256")}
    run = {name: CONFIG[name] for name in ("batch_size", "length", "steps")}
    given = SmashSettings(model=began.config, optimiser=Optimiser(**CONFIG["optimiser"]), **run, **fields)
    _, params = first_smash_params(given, began.params, folder)
    jax.tree.map(np.testing.assert_array_equal, params["smasher"], modules_of(folder, folder).params)
    with pytest.raises(ValueError, match=r"micro_layers must be the 1 of the modules in .*hamburger; got 2"):
        first_smash_params(dataclasses.replace(given, micro_layers=2), began.params, folder)


def test_groups_follow_the_trained_modules(root, whole, tmp_path):
    folder = whole[0] / "hamburger"
    given = {"rule": "ratio", "ratio": 1.0, "micro_steps": 3, "modules": folder, "batch_tokens": 512}
    segment(root / "packed", str(folder), tmp_path / "it", price=5.0, **given)
    made = json.loads((tmp_path / "it/index.json").read_text())["segmentation"]
    assert made["price"] == 5.0
    assert len(made["modules_sha256"]) == 64
    assert made["statistics"]["train-stories"]["tokens_a_group"] > 1.1
    segment(root / "packed", str(folder), tmp_path / "dear", price=0.0, **given)
    made = json.loads((tmp_path / "dear/index.json").read_text())["segmentation"]
    assert made["statistics"]["train-stories"]["tokens_a_group"] < 1.1  # What costs anything is not fused.
    with pytest.raises(ValueError, match=r"micro_steps must be at most the 3 of .*hamburger; got 4"):
        segment(root / "packed", str(folder), tmp_path / "out", **(given | {"micro_steps": 4}))
    with pytest.raises(ValueError, match=r"holds the base that its modules were trained with"):
        segment(root / "packed", str(root / "base"), tmp_path / "out", **given)
    with pytest.raises(ValueError, match=r"price must be at least 0, beside modules; got 0\.5"):
        segment(root / "packed", str(folder), tmp_path / "out", price=0.5)
    with pytest.raises(FileNotFoundError, match=r"smasher\.json is missing"):
        segment(root / "packed", str(folder), tmp_path / "out", **(given | {"modules": root / "base"}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"micro_steps": 2}, {}, "micro_steps must be at least the 3 of .*segmented; got 2"),
        ({"tapped_layers": [0, 2]}, {}, "tapped_layers must be layers of the base, 0 to 1; got 2"),
        ({"base": "thawed"}, {}, "base must be one of trained, frozen, lora; got 'thawed'"),
        ({"embedder": "sum"}, {}, "embedder must be one of attention, mean; got 'sum'"),
        ({"stop_target": "mine"}, {}, "stop_target must be one of groups, own; got 'mine'"),
        ({"kl_weight": -1}, {}, "kl_weight must be at least 0; got -1"),
        ({"beyond_weight": -0.5}, {}, "beyond_weight must be at least 0; got -0.5"),
        ({"further_share": 0}, {}, "further_share must be above 0 and at most 1; got 0"),
        ({"cut_share": 1}, {}, "cut_share must be from 0 to below 1; got 1"),
        ({"unfused_share": -0.5}, {}, "unfused_share must be from 0 to below 1; got -0.5"),
        ({"rank": 0}, {}, "rank must be at least 1"),
        ({"own_rows": 1}, {}, r"recall and own_rows are settings of train\.base alone"),
        ({"circle_weight": 2.0}, {}, r"circle_weight says nothing of modules; got 2"),
        ({"micro_stepps": 3}, {}, "unknown field 'micro_stepps'"),
        ({"steps": 1}, {}, "steps must exceed the 1 steps of warm-up; got 1"),
        ({}, {"segmented": Path("packed")}, r"packed must be segmented by train\.segment; it is packed alone"),
        ({}, {"segmented": Path("nowhere")}, "nowhere cannot be read as packed data"),
        ({}, {"init_from": Path("nowhere")}, "no model 'nowhere'|nowhere"),
        ({}, {"tokenizer": Path("packed")}, r"tokenizer\.json is missing"),
        ({}, {"modules": Path("base")}, r"smasher\.(json|safetensors)"),
        ({}, {"teacher": Path("base")}, r"a teacher needs a kl_weight above 0; got 0\.0"),
        ({"kl_weight": 1}, {"teacher": Path("packed")}, r"tokenizer\.json is missing"),
        ({"kl_weight": 1}, {"teacher": Path("nowhere")}, "nowhere"),
        ({}, {"sources": Path("nowhere.md")}, r"nowhere\.md must be a file on the text's sources; there is none"),
        ({}, {"mesh": "data=3"}, "a batch must divide among 3 devices; got 8 rows"),
        ({}, {"until": 9}, "until must be from 1 to the run's 8 steps; got 9"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(root, tmp_path, changes, options, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    given = {"config": tmp_path / "config.json", "segmented": root / "segmented", "init_from": root / "base"}
    found = {name: root / value if isinstance(value, Path) else value for name, value in options.items()}
    with pytest.raises((ValueError, OSError), match=message):
        main(**(given | {"output": tmp_path / "run"} | found))
    assert not (tmp_path / "run").exists()


def test_data_of_another_base_or_tokenizer_is_refused(root, tmp_path):
    write_strangers(root, tmp_path)
    for base, message in (
        ("wider", r"segmented was segmented by a base whose configuration has hash [0-9a-f]{64}; got [0-9a-f]{64}"),
        ("other", r"segmented was packed with the tokenizer of hash [0-9a-f]{64}; .*other has [0-9a-f]{64}"),
    ):
        with pytest.raises(ValueError, match=message):
            main(root / "config.json", root / "segmented", tmp_path / base, tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"tokenizer must be that of .*base: modules are loaded for it alone; got .*other"
    ):
        main(root / "config.json", root / "segmented", root / "base", tmp_path / "run", tokenizer=tmp_path / "other")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_own_settings_alone(root, whole, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"stop_weight": 1.0}))
    before = {p.name: p.stat().st_mtime_ns for p in whole[0].rglob("*")}
    with pytest.raises(ValueError, match=r"whole was begun with stop_weight 0\.5; got 1\.0"):
        main(tmp_path / "config.json", root / "segmented", root / "base", whole[0], resume=True)
    with pytest.raises(ValueError, match="holds a run; resume it or choose another folder"):
        main(root / "config.json", root / "segmented", root / "base", whole[0])
    assert before == {p.name: p.stat().st_mtime_ns for p in whole[0].rglob("*")}


@pytest.mark.parametrize(
    "name", ["", "-further", "-last", "-averaged", "-unfused", "-prompts", "-beyond", "-ablations"]
)
def test_the_shipped_configurations_fit_the_shipped_base(request, name):
    file = request.config.rootpath / f"train/configs/tiny-hamburger{name}.json"
    settings = load_kind(SmashSettings, file, model=read_config(ASSETS / "tiny")[0])
    assert settings.smash.micro_steps == 4
    assert settings.transformation()
