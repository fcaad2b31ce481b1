import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.loading import load
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.segment import RatioOnly
from jax_smash.smash.smasher import SmasherDef, random_smasher
from tests.checkpoints import LLAMA, write_checkpoint
from tests.train.corpus_files import make_packed, make_tokenizer
from train.data.replies import Replies
from train.data.rows import Packed
from train.data.segmented import Reading, segment_packed
from train.data.segmenter import ByFusionLoss
from train.segment import main

SETTINGS = {"rule": "ratio", "ratio": 0.99, "micro_steps": 3, "batch_tokens": 256, "prompt_share": 0.8}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, several to a source, and a random model with their tokenizer."""
    root = tmp_path_factory.mktemp("segment")
    _, tokenizer = make_packed(root, shard_tokens=150)
    write_checkpoint(root / "model", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1})
    for file in tokenizer.iterdir():
        shutil.copy(file, root / "model")
    return root


@pytest.fixture(scope="module")
def segmented(place):
    """The folder of an undisturbed run, its index, and the tokens, places and source of each document."""
    main(place / "packed", str(place / "model"), place / "segmented", **SETTINGS)
    return place / "segmented", *read(place / "segmented")


def read(folder):
    index, documents = json.loads((folder / "index.json").read_text()), []
    for source in index["sources"]:
        for split in ("train", "held_out"):
            for shard in source[split]["shards"]:
                ends = np.load(folder / f"{shard}.documents.npy")
                tokens, places = (np.load(folder / f"{shard}.{kind}.npy") for kind in ("tokens", "places"))
                assert tokens.shape == places.shape == (ends[-1],)
                pairs = zip(np.split(tokens, ends[:-1]), np.split(places, ends[:-1]), strict=True)
                documents += [(source["name"], t.tolist(), p.tolist()) for t, p in pairs]
    return index, documents


def entropies(model, tokens):
    """The entropy of each token after the first, in float64, from a forward over its document alone."""
    base = model.definition.bind(model.params["target"])

    @jax.jit
    def log_probs(tokens):
        position = jnp.arange(64, dtype=jnp.int32)[None]
        hidden = base.forward(base.embed(tokens), position, None, Block.causal(position >= 0)).hidden
        return jax.nn.log_softmax(base.unembed(hidden), axis=-1)

    padded = jnp.array([tokens + [0] * (64 - len(tokens))], jnp.int32)
    log_p = np.asarray(log_probs(padded)[0, : len(tokens) - 1], np.float64)
    return [0.0, *(-(np.exp(log_p) * log_p).sum(-1))]


@pytest.mark.slow
def test_chats_are_cut_by_the_rule_in_their_replies_alone(place, segmented):
    model = load(str(place / "model"), dtype=jnp.float32)
    begins, ends = (model.tokenizer.convert_tokens_to_ids(name) for name in ("<|assistant|>", "<|end|>"))
    chats = [(tokens, places) for name, tokens, places in segmented[2] if name == "chats"][:6]
    fused = 0
    for tokens, places in chats:
        inside, expected, group = False, [], []
        nats = entropies(model, tokens)
        for token, before, h in zip(tokens, [None, *tokens], nats, strict=False):
            begins_reply = before == begins
            joins = inside and not begins_reply and group and len(group) < 3 and h < 0.99 * max(group)
            inside = inside or begins_reply
            group = [*group, h] if joins else [h]
            expected.append(len(group) - 1)
            inside = inside and token != ends
        assert places == expected
        fused += sum(place > 0 for place in places)
    assert fused > 6


def test_texts_keep_a_prompt_of_their_own_slots(segmented):
    stories = [(tokens, places) for name, tokens, places in segmented[2] if name == "stories"]
    assert len(stories) == 60
    first = [next((i for i, place in enumerate(places) if place), len(places)) for _, places in stories]
    assert min(first) >= 2  # The first token is the prompt's, the second begins the first group.
    assert len({*first}) > 3
    assert max(place for _, places in stories for place in places) == 2


def test_the_folder_is_packed_data_still(place, segmented):
    folder, index, documents = segmented
    before, after = (Packed(f, place / "model").pieces("train", 16) for f in (place / "packed", folder))
    for name, pieces in before.items():
        assert len(pieces) == len(after[name])
        np.testing.assert_array_equal(pieces[3].tokens, after[name][3].tokens)
    assert {path.name for path in folder.iterdir()} >= {"index.json", "groups.png"}
    assert not (folder / "progress.json").exists()
    packed = json.loads((place / "packed/index.json").read_text())
    assert index == packed | {"segmentation": index["segmentation"]}
    assert len(packed["sources"][0]["train"]["shards"]) > 2
    assert len(documents) == 81


def test_the_statistics_count_what_is_there(segmented):
    _, index, documents = segmented
    statistics = index["segmentation"]["statistics"]
    assert sum(counts["tokens"] for counts in statistics.values()) == sum(len(t) for _, t, _ in documents)
    assert sum(counts["slots"] for counts in statistics.values()) == sum(p.count(0) for _, _, p in documents)
    for counts in statistics.values():
        lengths = counts["group_lengths"]
        assert sum(n * (i + 1) for i, n in enumerate(lengths)) == counts["reply_tokens"]
        assert sum(counts["first_entropy"]) == sum(lengths)
        assert sum(counts["joined_entropy"]) == counts["reply_tokens"] - sum(lengths)
        assert 1 < counts["tokens_a_slot"] < counts["tokens_a_group"] < 3
    assert index["segmentation"]["rule"] == "ratio"
    assert len(index["segmentation"]["base_sha256"]) == len(index["segmentation"]["weights_sha256"]) == 64


def same_bytes(a, b):
    names = sorted(path.name for path in a.iterdir())
    assert names == sorted(path.name for path in b.iterdir())
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names if name != "groups.png")


@pytest.mark.parametrize("saves", [1, 2, 4, 7])
def test_a_run_that_is_cut_off_goes_on_to_the_same_bytes(place, segmented, tmp_path, monkeypatch, saves):
    """It is cut off while it notes how far it has come, the note not yet in its place."""
    calls, replace = [], os.replace

    def cut_off(source, target):
        if str(target).endswith("progress.json"):
            calls.append(target)
            if len(calls) > saves:
                raise KeyboardInterrupt
        replace(source, target)

    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            main(place / "packed", str(place / "model"), output, **SETTINGS)
    assert not output.exists()
    with pytest.raises(ValueError, match="holds an unfinished run; resume it, or remove it"):
        main(place / "packed", str(place / "model"), output, **SETTINGS)
    with pytest.raises(ValueError, match=r"was begun with ratio 0\.99; got 0\.5"):
        main(place / "packed", str(place / "model"), output, **(SETTINGS | {"ratio": 0.5}), resume=True)
    # So is a setting that is there only where it is given.
    progress = tmp_path / ".out.part/progress.json"
    begun = progress.read_text()
    told = json.loads(begun)
    progress.write_text(json.dumps(told | {"settings": told["settings"] | {"price": 0.1}}))
    with pytest.raises(ValueError, match=r"was begun with price 0\.1; got None"):
        main(place / "packed", str(place / "model"), output, **SETTINGS, resume=True)
    progress.write_text(begun)
    main(place / "packed", str(place / "model"), output, **SETTINGS, resume=True)
    assert same_bytes(segmented[0], output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_is_whole_is_told_and_left_as_it_is(place, segmented, tmp_path, capsys):
    """As it is found where a recipe was killed before it noted that the folder is whole."""
    output = shutil.copytree(segmented[0], tmp_path / "out")
    (output / "progress.json").write_text("{}")
    main(place / "packed", str(place / "model"), output, **SETTINGS, resume=True)
    assert f"{output} is whole: all its groups were there before" in capsys.readouterr().out
    assert same_bytes(segmented[0], output)


@pytest.mark.slow
def test_long_documents_are_read_in_windows_that_begin_groups(place, tmp_path):
    """Every token may join here, and windows of 8 tokens begin at 0, 6 and 12: their own tokens at 0, 8 and 14."""
    settings = {"rule": "sliding", "confidence": 1 / 290, "micro_steps": 3, "length": 8, "prompt_share": 0.0}
    main(place / "packed", str(place / "model"), tmp_path / "out", **settings)
    index, documents = read(tmp_path / "out")
    assert index["segmentation"]["reading"]["length"] == 8
    long = [places for name, tokens, places in documents if name == "stories" and len(tokens) > 15]
    assert len(long) > 20
    assert all(places[:16] == [0, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0, 1] for places in long)


@pytest.mark.slow
def test_groups_follow_what_the_embedder_loses(place, tmp_path):
    model = load(str(place / "model"), dtype=jnp.float32)
    graphdef, smasher = random_smasher(model.config, SmashConfig.for_base(model.config, micro_layers=1, micro_steps=3))
    data, rule = Packed(place / "packed", place / "model"), RatioOnly(1.0)
    made = {}
    for price in (0.0, 1.0):
        segmenter = ByFusionLoss(model.definition, rule, 3, SmasherDef(graphdef), price)
        index = segment_packed(
            data,
            segmenter,
            model.params | {"smasher": smasher},
            Reading(64, 512, Replies(prompt_share=0.0)),
            tmp_path / str(price),
            settings={"rule": "ratio", "price": price},
        )
        made[price] = index["segmentation"]["statistics"]["train-stories"]
    assert made[0.0]["tokens_a_group"] == 1.0  # A random embedder always loses something.
    assert made[1.0]["tokens_a_group"] > 1.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "fixed", "ratio": None}, "rule must be one of decreasing, ratio, sliding, upper-bound; got 'fixed'"),
        ({"confidence": 0.5}, "rule 'ratio' has ratio; got 'confidence'"),
        ({"ratio": 2.0}, r"ratio must be from 0 to 1; got 2"),
        ({"micro_steps": 0}, "micro_steps must be from 1 to 64; got 0"),
        ({"prompt_share": -1.0}, r"prompt_share must be from 0 to 1; got -1"),
        ({"length": 1000}, "length must be from 4 to the model's 256; got 1000"),
        ({"batch_tokens": 0}, "batch_tokens and chunk_tokens at least 1; got"),
        ({"model": "nowhere"}, "no model 'nowhere'"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(place, tmp_path, options, message):
    given = {"packed": place / "packed", "model": str(place / "model"), "output": tmp_path / "out"} | SETTINGS
    with pytest.raises((ValueError, OSError), match=message):
        main(**(given | options))
    assert not [*tmp_path.iterdir()]


def test_data_of_another_tokenizer_is_refused(place, tmp_path):
    shutil.copytree(place / "model", tmp_path / "model")
    make_tokenizer(tmp_path / "other")
    text = (tmp_path / "other/tokenizer.json").read_text()
    (tmp_path / "model/tokenizer.json").write_text(text.replace("<|pad|>", "<|fill|>"))
    with pytest.raises(ValueError, match=r"was packed with the tokenizer of hash [0-9a-f]{64}; .* has [0-9a-f]{64}"):
        main(place / "packed", str(tmp_path / "model"), tmp_path / "out")
    (tmp_path / "model/tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"model must hold tokenizer\.json; got none"):
        main(place / "packed", str(tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_that_are_empty_or_in_use_are_told(place, segmented, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty cannot be read as packed data"):
        main(tmp_path / "empty", str(place / "model"), tmp_path / "out")
    before = (segmented[0] / "index.json").read_bytes()
    for settings in (SETTINGS, SETTINGS | {"ratio": 0.5, "resume": True}):
        with pytest.raises(FileExistsError, match="must be a new or empty directory"):
            main(place / "packed", str(place / "model"), segmented[0], **settings)
    with pytest.raises(FileExistsError, match="must be a new or empty directory"):
        main(place / "packed", str(place / "model"), place / "packed", **SETTINGS, resume=True)
    assert (segmented[0] / "index.json").read_bytes() == before
    shutil.copytree(place / "packed", tmp_path / "none")
    index = json.loads((tmp_path / "none/index.json").read_text())
    for source in index["sources"]:
        for split in ("train", "held_out"):
            source[split] = {"documents": 0, "tokens": 0, "shards": []}
    (tmp_path / "none/index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="none must hold documents to segment; got none"):
        main(tmp_path / "none", str(place / "model"), tmp_path / "out")


@pytest.mark.slow
def test_a_base_divided_over_devices_makes_the_same_groups(place, segmented, tmp_path):
    main(place / "packed", str(place / "model"), tmp_path / "out", **SETTINGS, mesh="fsdp=2,tp=2")
    assert read(tmp_path / "out")[1] == segmented[2]


def test_a_base_in_bfloat16_makes_nearly_the_same_groups_and_says_so(place, segmented, tmp_path):
    main(place / "packed", str(place / "model"), tmp_path / "out", **SETTINGS, dtype="bfloat16")
    index, documents = read(tmp_path / "out")
    assert index["segmentation"]["dtype"] == "bfloat16"
    places, other = (np.concatenate([p for _, _, p in found]) for found in (segmented[2], documents))
    assert np.mean(places == other) > 0.8
    with pytest.raises(ValueError, match="dtype must be float32 or bfloat16; got 'int8'"):
        main(place / "packed", str(place / "model"), tmp_path / "no", **SETTINGS, dtype="int8")
