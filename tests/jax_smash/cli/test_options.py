"""Options of drafting, through the program."""

import json

import pytest

from jax_smash import load
from jax_smash.checkpoints.eagle import random_modules, save_eagle
from jax_smash.checkpoints.medusa import save_medusa
from tests.jax_smash.cli.test_bad_input import refused
from tests.medusa import random_heads
from tests.model_directory import write_model
from tests.tiny import tiny_model

TEXT = ("generate", "--prompt", "Once upon a time", "--max-new-tokens", "24", "--json", "out.jsonl")
DRAFTED = (*TEXT, "--method", "recycling", "--tree", "chain-3")


def record(directory) -> dict:
    (line,) = (directory / "out.jsonl").read_text().splitlines()
    return json.loads(line)


def test_a_drafted_text_is_the_plain_one_and_says_how_drafts_fared(call, model, tmp_path):
    plain = call(*TEXT, "--model", model)
    before = record(tmp_path)
    drafted = call(*DRAFTED, "--model", model, "--overwrite")
    after = record(tmp_path)
    assert plain[:2] == drafted[:2]
    assert "drafted" not in before
    fared = after["drafted"]
    assert (fared["tree"], fared["nodes"], len(fared["kept"])) == ("chain-3", 3, 3)
    # Every forward gives a token, and one more for each draft that was kept; the limit may cut the last forward's.
    emitted = after["target_forwards"] + sum(fared["kept"])
    assert 0 <= emitted - (after["new_tokens"] - 1) <= 3
    assert fared["acceptance"] == [k / t if t else None for k, t in zip(fared["kept"], fared["tried"], strict=True)]
    assert "3 drafted nodes a step" in drafted[2]
    assert "drafted" not in plain[2]


def test_a_warm_start_file_grows_from_run_to_run(call, model, tmp_path):
    assert call(*DRAFTED, "--model", model, "--save-warm-start", "m.st")[0] == 0
    cold = record(tmp_path)
    grown = ("--warm-start", "m.st", "--save-warm-start", "m.st")
    status = call(*TEXT[:-2], *DRAFTED[-4:], "--json", "again.jsonl", "--model", model, *grown)[0]
    warm = json.loads((tmp_path / "again.jsonl").read_text())
    assert status == 0
    assert warm["token_ids"] == cold["token_ids"]
    assert warm["target_forwards"] < cold["target_forwards"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tree", "chain-3"), ["--tree does not go with --method ar", "takes none"]),
        (("--warm-start", "m.st"), ["--warm-start does not go with --method ar"]),
        (("--method", "suffix", "--warm-start", "m.st"), ["--warm-start does not go with --method suffix", "--tree"]),
        (("--method", "recycling", "--lookup-corpus", "."), ["--lookup-corpus does not go with --method recycling"]),
        (("--method", "hybrid", "--draft-model", "int8"), ["--draft-model does not go with --method hybrid"]),
        (("--method", "draft-model"), ["--method draft-model needs --draft-model"]),
        (
            ("--method", "draft-model", "--draft-model", "sparse:best"),
            ["draft-model: a policy must be one of butler, dense"],
        ),
        (("--method", "draft-model", "--draft-model", "absent"), ["absent"]),
        (("--method", "eagle"), ["--drafter must be a folder", "of method eagle none is shipped for"]),
        (
            ("--method", "eagle", "--drafter", "absent"),
            ["--drafter: absent must be a folder", "got none"],
        ),
        (("--method", "hybrid", "--drafter", "random"), ["--drafter: must be a folder or shipped:METHOD"]),
        (("--method", "chimera", "--drafter", "heads"), ["heads holds a drafter of method medusa; got method chimera"]),
        (
            ("--method", "medusa", "--drafter", "heads"),
            ["--drafter: the drafter in heads is for a target with"],
        ),
        (
            ("--method", "recycling", "--tree", "chain-3:least=x"),
            ["setting of chain-N is least=P", "got 'least=x'"],
        ),
        (("--method", "lookup", "--drafter", "random"), ["--drafter does not go with --method lookup"]),
        (("--method", "recycling", "--tree", "chain-0"), ["--tree", "at least 1 node; got 0"]),
        (("--method", "recycling", "--tree", "oak"), ["--tree", "auto, off, chain-N", "'oak'"]),
        (("--method", "recycling", "--tree", "no.json"), ["no.json"]),
        (("--method", "recycling", "--warm-start", "m.st"), ["m.st is no file"]),
        (("--method", "recycling", "--save-warm-start", "no/m.st"), ["needs a directory no"]),
        (("--method", "recycling", "--save-warm-start", "there"), ["--save-warm-start: there exists", "--overwrite"]),
        (("--method", "recycling", "--warm-start", "there"), ["there is damaged"]),
        (("--method", "recycling", "--tree", "cycle.json"), ["--tree: cycle.json", "node 1 is its own ancestor"]),
        (("--method", "recycling", "--tree", "orphan.json"), ["--tree: orphan.json", "[0] is not in the tree"]),
        (("--method", "recycling", "--tree", "late.json"), ["--tree: late.json", "node 1 stands before its parent 2"]),
        (("--method", "recycling", "--tree", "chain-300"), ["tree must fit the cache's 256 slots; it has 301 nodes"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(called, model, tmp_path, given, said):
    (tmp_path / "there").write_text("something else")
    (tmp_path / "cycle.json").write_text('{"parents": [-1, 2, 1]}')
    (tmp_path / "orphan.json").write_text("[[0, 0]]")
    (tmp_path / "late.json").write_text('{"parents": [-1, 2, 0]}')
    if "heads" in given:
        heads = random_heads(tiny_model(d_model=128))
        save_medusa(tmp_path / "heads", heads.config, heads.params)
    before = sorted(tmp_path.iterdir())
    refused(called(*TEXT, "--model", model, *given), *said)
    assert sorted(tmp_path.iterdir()) == before


def test_a_matrix_of_another_tokenizer_is_refused(call, called, model, tmp_path):
    assert call(*DRAFTED, "--model", model, "--save-warm-start", "m.st")[0] == 0
    other = write_model(tmp_path / "other", num_hidden_layers=1)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    told = called(*DRAFTED, "--overwrite", "--model", other, "--warm-start", "m.st")
    refused(told, "m.st was saved with another tokenizer")


def test_a_model_of_another_vocabulary_cannot_draft(called, model, tmp_path):
    drafting = (*TEXT, "--model", model, "--method", "draft-model", "--draft-model", "tiny")
    refused(called(*drafting), "tiny", "vocabulary")


def test_a_drafter_in_a_folder_drafts(call, called, model, tmp_path, caplog):
    made = random_modules(load(model).config)
    save_eagle(tmp_path / "drafter", made.config, made.params, trained_length=4)
    plain = call(*TEXT, "--model", model)
    options = ("--method", "eagle", "--drafter", "drafter", "--tree", "chain-4", "--overwrite")
    drafted = call(*TEXT, "--model", model, *options)
    assert plain[:2] == drafted[:2]
    assert record(tmp_path)["drafted"]["nodes"] == 4
    assert "the drafter was trained on rows of 4: of later ones the target may keep fewer" in caplog.text
    refused(called(*TEXT, "--model", "tiny", *options), "is for a target with a width of", "tiny has one of 256")


@pytest.mark.slow
def test_a_models_int8_copy_drafts(call, model, tmp_path):
    plain = call(*TEXT, "--model", model)
    options = ("--method", "draft-model", "--draft-model", "int8", "--tree", "chain-2", "--overwrite")
    drafted = call(*TEXT, "--model", model, *options)
    assert plain[:2] == drafted[:2]
    assert record(tmp_path)["drafted"]["nodes"] == 2
