import json

import pytest

from jax_smash.checkpoints.huggingface import load_params, read_config
from tests.checkpoints import LLAMA, write_checkpoint
from train.parts.language_model.model_folder import export


@pytest.fixture
def source(tmp_path):
    """A base whose tokenizer has neither a configuration nor a template."""
    write_checkpoint(tmp_path / "source", {**LLAMA, "eos_token_id": 1})
    (tmp_path / "source/tokenizer.json").write_text("{}")
    return tmp_path / "source"


def exported(source):
    output = source.parent / "out"
    export(output, read_config(source)[0], load_params(source)[1], source)
    return output


def test_generation_settings_are_kept_and_so_are_stop_tokens_that_stand_there_alone(source):
    settings = {"temperature": 0.7, "eos_token_id": [1, 97]}
    (source / "generation_config.json").write_text(json.dumps(settings))
    found = json.loads((exported(source) / "generation_config.json").read_text())
    assert settings.items() <= found.items()


def test_what_a_bases_tokenizer_has_is_copied_and_no_more_is_asked_for(source):
    for name in ("added_tokens.json", "special_tokens_map.json", "tokenizer.model"):
        (source / name).write_text(name)
    output = exported(source)
    assert (output / "tokenizer.json").read_text() == "{}"
    assert (output / "tokenizer.model").read_text() == "tokenizer.model"
    assert (output / "added_tokens.json").is_file()
    assert (output / "special_tokens_map.json").is_file()
    assert not (output / "chat_template.jinja").exists()
