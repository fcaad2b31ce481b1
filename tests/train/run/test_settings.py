import dataclasses
import json
import shutil

import pytest

from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.settings import ChimeraSettings, DFlashSettings, Eagle1Settings, EagleSettings, MicroSettings
from train.parts.hamburger.settings import SmashSettings
from train.run.settings import Settings, load_kind, load_settings, remember, with_special_tokens
from train.tokenizer import save_tokenizer, train_tokenizer

MODEL = {
    "family": "llama", "vocab_size": 300, "num_layers": 2, "d_model": 32, "num_heads": 4, "num_kv_heads": 2,
    "head_width": 8, "mlp_width": 48, "max_positions": 64,
}  # fmt: skip
FIELDS = {"model": MODEL, "optimiser": {"warmup": 2}, "batch_size": 8, "length": 32, "steps": 6}


def write(tmp_path, fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["a fox ran to the den. " * 9], 280), folder)
    return folder


def test_what_is_given_replaces_what_the_file_says(tmp_path):
    changes = {"optimiser.final": 0.5}
    settings = load_settings(write(tmp_path, FIELDS), steps=9, seed=3, batch_size=None, **changes)
    assert settings.optimiser.final == 0.5
    assert (settings.steps, settings.seed, settings.batch_size) == (9, 3, 8)
    assert settings.optimiser.warmup == 2
    assert settings.model.layer_kinds == ("full", "full")


def test_a_runs_own_settings_file_gives_the_same_settings(tmp_path, tokenizer):
    settings = with_special_tokens(load_settings(write(tmp_path, FIELDS)), tokenizer)
    remember(settings, tmp_path / "run", resume=False, packed="a1")
    assert load_settings(tmp_path / "run/settings.json") == settings


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS | {"model": MODEL | {"depth": 3}},
        FIELDS | {"model": MODEL | {"num_heads": 3}},
        FIELDS | {"optimiser": {"speed": 1}},
        {"model": MODEL, "steps": 6},
        FIELDS | {"lenght": 32},
        FIELDS | {"length": 65},
        FIELDS | {"dtype": "float16"},
        FIELDS | {"recall": True},
        FIELDS | {"accumulate": 3},
        [],
    ],
)
def test_a_wrong_file_is_named(tmp_path, fields):
    with pytest.raises(ValueError, match=r"config\.json is not a training file"):
        load_settings(write(tmp_path, fields))


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (EagleSettings, {"own_head": "False"}, "own_head must be of type bool; got 'False'"),
        (EagleSettings, {"tap_norms": 1}, "tap_norms must be of type bool; got 1"),
        (Eagle1Settings, {"join_bias": "no"}, "join_bias must be of type bool; got 'no'"),
        (ChimeraSettings, {"gram": 2.0}, r"gram must be of type int; got 2\.0"),
        (MedusaSettings, {"num_heads": True}, "num_heads must be of type int; got True"),
        (DFlashSettings, {"mask_token": "3"}, r"mask_token must be of type int \| None; got '3'"),
        (EagleSettings, {"taps": [0.0, 1.0, 2.0]}, r"taps must be a list of whole numbers; got \[0\.0, 1\.0, 2\.0\]"),
        (EagleSettings, {"taps": [True, 2]}, r"taps must be a list of whole numbers; got \[True, 2\]"),
        (DFlashSettings, {"taps": 1}, "taps must be a list of whole numbers; got 1"),
        (MicroSettings, {"tapped_layers": [1.0]}, r"tapped_layers must be a list of whole numbers; got \[1\.0\]"),
        (SmashSettings, {"tapped_layers": ["1"]}, r"tapped_layers must be a list of whole numbers; got \['1'\]"),
        (MedusaSettings, {"targets": "w_o"}, "targets must be a list of texts; got 'w_o'"),
        (Settings, {"answer_weight": True}, "answer_weight must be of type float; got True"),
        (Settings, {"dtype": None}, "dtype must be of type str; got None"),
        (Settings, {"optimiser": {"warmup": 2.5}}, r"optimiser\.warmup must be of type int; got 2\.5"),
        (Settings, {"optimiser": {"clip": "1"}}, r"optimiser\.clip must be of type float; got '1'"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, kind, fields, said):
    with pytest.raises(ValueError, match=f"not a training file: {said}"):
        load_kind(kind, write(tmp_path, FIELDS | fields))
    if "optimiser" not in fields and None not in fields.values():
        with pytest.raises(ValueError, match=f"not a training file: {said}"):
            load_kind(kind, write(tmp_path, FIELDS), **fields)


def test_a_whole_number_is_a_float_and_none_is_no_value_where_the_field_may_have_none(tmp_path):
    settings = load_kind(DFlashSettings, write(tmp_path, FIELDS | {"decay_places": 4, "mask_token": None}))
    assert (settings.decay_places, settings.mask_token) == (4, None)


def test_a_document_and_a_turn_both_end_a_text(tmp_path, tokenizer):
    model = with_special_tokens(load_settings(write(tmp_path, FIELDS)), tokenizer).model
    assert (model.bos_token, model.eos_tokens, model.pad_token) == (0, (1, 5), 6)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"bos_token": None, "pad_token": None}, (None, (1, 5), None)),
        ({"bos_token": {"content": "<|bos|>", "lstrip": False}, "eos_token": {"content": "<|eos|>"}}, (0, (1, 5), 6)),
        ({"eos_token": None}, (0, (5,), 6)),
        ({"pad_token": "<|unheard of|>"}, (0, (1, 5), None)),
    ],
)
def test_special_tokens_may_be_null_or_have_more_fields(tmp_path, tokenizer, changes, found):
    settings, folder = load_settings(write(tmp_path, FIELDS)), changed(tokenizer, tmp_path / "tokenizer", changes)
    model = with_special_tokens(settings, folder).model
    assert (model.bos_token, model.eos_tokens, model.pad_token) == found


def test_special_tokens_may_be_left_out(tmp_path, tokenizer):
    folder = changed(tokenizer, tmp_path / "tokenizer", {}, without=("bos_token", "pad_token"))
    model = with_special_tokens(load_settings(write(tmp_path, FIELDS)), folder).model
    assert (model.bos_token, model.eos_tokens, model.pad_token) == (None, (1, 5), None)


def test_what_ends_a_text_of_the_model_that_a_run_begins_with_still_does(tmp_path, tokenizer):
    fields = FIELDS | {"model": MODEL | {"eos_tokens": [1, 107]}}
    assert with_special_tokens(load_settings(write(tmp_path, fields)), tokenizer).model.eos_tokens == (1, 5, 107)


@pytest.mark.parametrize("token", [7, {"id": 7}, ["<|bos|>"]])
def test_a_special_token_that_is_no_text_is_named(tmp_path, tokenizer, token):
    folder = changed(tokenizer, tmp_path / "tokenizer", {"bos_token": token})
    with pytest.raises(ValueError, match="not a tokenizer's folder: bos_token must be a text or have one as content"):
        with_special_tokens(load_settings(write(tmp_path, FIELDS)), folder)


def changed(tokenizer, folder, changes, without=()):
    """Copies a tokenizer's folder with other fields in its configuration."""
    shutil.copytree(tokenizer, folder)
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if name not in without}))
    return folder


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path, tokenizer):
    small = load_settings(write(tmp_path, FIELDS | {"model": MODEL | {"vocab_size": 200}}))
    with pytest.raises(ValueError, match=r"vocab_size must be at least the tokenizer's 2\d\d; got 200"):
        with_special_tokens(small, tokenizer)


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match="not a tokenizer's folder"):
        with_special_tokens(load_settings(write(tmp_path, FIELDS)), tmp_path)


def test_a_run_is_resumed_with_its_own_settings_alone(tmp_path):
    settings = load_settings(write(tmp_path, FIELDS))
    remember(settings, tmp_path / "run", resume=True, packed="a1")
    remember(settings, tmp_path / "run", resume=True, packed="a1")
    with pytest.raises(ValueError, match="was begun with seed 0; got 1"):
        remember(dataclasses.replace(settings, seed=1), tmp_path / "run", resume=True, packed="a1")


def test_a_run_is_resumed_on_the_rows_that_it_was_begun_on_alone(tmp_path):
    settings = load_settings(write(tmp_path, FIELDS))
    remember(settings, tmp_path / "run", resume=False, packed="a1")
    with pytest.raises(ValueError, match="was begun with packed_sha256 a1; got b2"):
        remember(settings, tmp_path / "run", resume=True, packed="b2")


def test_a_field_that_a_runs_file_lacks_had_its_default(tmp_path):
    settings = load_settings(write(tmp_path, FIELDS))
    remember(settings, tmp_path / "run", resume=False, packed="a1")
    path = tmp_path / "run" / "settings.json"
    fields = json.loads(path.read_text())
    del fields["answer_weight"], fields["packed_sha256"]
    path.write_text(json.dumps(fields))
    remember(settings, tmp_path / "run", resume=True, packed="a1")
    with pytest.raises(ValueError, match=r"was begun with answer_weight 1\.0; got 2\.0"):
        remember(dataclasses.replace(settings, answer_weight=2.0), tmp_path / "run", resume=True, packed="a1")


def test_what_differs_in_a_shape_is_named_by_its_field(tmp_path):
    settings = load_settings(write(tmp_path, FIELDS))
    remember(settings, tmp_path / "run", resume=False, packed="a1")
    other = load_settings(write(tmp_path, FIELDS | {"model": MODEL | {"mlp_width": 56}}))
    with pytest.raises(ValueError, match=r"was begun with model\.mlp_width 48; got 56"):
        remember(other, tmp_path / "run", resume=True, packed="a1")


def test_a_run_is_not_begun_where_there_is_one(tmp_path):
    settings = load_settings(write(tmp_path, FIELDS))
    remember(settings, tmp_path / "run", resume=False, packed="a1")
    with pytest.raises(ValueError, match="holds a run"):
        remember(settings, tmp_path / "run", resume=False, packed="a1")
