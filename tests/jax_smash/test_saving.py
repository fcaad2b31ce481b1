import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import from_apply, generate, load, save
from jax_smash.loading import ASSETS, quantised
from jax_smash.sharding import make_mesh, place
from tests.tiny import tiny_model


def same(first, second):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(first), jax.device_get(second))


def test_a_saved_model_is_the_same_when_it_is_loaded(tmp_path):
    """The shipped one, with tokenizer, chat template, generation settings and modules."""
    model = load("tiny", modules="auto")
    assert save(model, tmp_path / "out") == tmp_path / "out"
    back = load(tmp_path / "out", modules="auto")
    same(model.params, back.params)
    same(model.modules.token_counts, back.modules.token_counts)
    for name in ("config", "stop_tokens"):
        assert getattr(back, name) == getattr(model, name)
    assert back.modules.config == model.modules.config
    assert back.tokenizer.chat_template == model.tokenizer.chat_template
    assert back.encode("The dog said:") == model.encode("The dog said:")
    files = {file.name for file in (ASSETS / "tiny").iterdir()} - {"README.md"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == files
    assert (tmp_path / "out" / "generation_config.json").read_bytes() == (
        ASSETS / "tiny" / "generation_config.json"
    ).read_bytes()


def test_a_model_made_by_hand_is_saved_with_its_own_tokenizer_and_stop_tokens(tmp_path):
    model = tiny_model(stop_tokens=(10, 257), layer_kinds=("full", "full"), window=0)
    save(model, tmp_path / "out")
    back = load(tmp_path / "out")
    same(model.params["target"], back.params["target"])
    assert back.stop_tokens == (10, 257)
    request = {"max_new_tokens": 12, "slots": 64}
    assert generate(back, "a fox", **request)[0].token_ids == generate(model, "a fox", **request)[0].token_ids


def test_other_weights_another_tokenizer_and_other_stop_tokens_are_those_that_are_saved(tmp_path):
    from transformers import AutoTokenizer

    model = load("tiny")
    tokenizer = AutoTokenizer.from_pretrained(str(model.path))
    tokenizer.chat_template = "{{ messages[0].content }}"
    changed = dataclasses.replace(
        model,
        tokenizer=tokenizer,
        stop_tokens=(*model.stop_tokens, 9),
        params={"target": jax.tree.map(lambda w: w + jnp.ones((), w.dtype), model.params["target"])},
    )
    save(changed, tmp_path / "out")
    back = load(tmp_path / "out")
    same(changed.params, back.params)
    assert back.tokenizer.chat_template == tokenizer.chat_template
    assert back.stop_tokens == tuple(sorted((*model.stop_tokens, 9)))
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings == json.loads((model.path / "generation_config.json").read_text()) | {
        "eos_token_id": list(back.stop_tokens)
    }


def test_a_model_over_several_devices_is_saved_whole(tmp_path):
    model = tiny_model(stop_tokens=(257,), layer_kinds=("full", "full"), window=0)
    divided = place(model.params["target"], make_mesh("fsdp=2,tp=2"))
    save(dataclasses.replace(model, params={"target": divided}), tmp_path / "out")
    same(load(tmp_path / "out").params, model.params)


def test_nothing_is_written_of_a_model_that_cannot_be_saved(tmp_path):
    model = tiny_model(stop_tokens=(10,))
    cases = [
        (quantised(model), ValueError, "weights to save must be plain; got int8"),
        (from_apply(lambda params, tokens: jax.nn.one_hot(tokens, 8)), ValueError, "apply_fn is none: save its params"),
        (
            dataclasses.replace(load("tiny"), stop_tokens=(1,)),
            ValueError,
            r"stop_tokens must hold those that the configuration and the tokenizer name \(\[5\]\)",
        ),
    ]
    for broken, error, message in cases:
        with pytest.raises(error, match=message):
            save(broken, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileExistsError, match="it has files in it"):
        save(model, tmp_path / "full")


def test_modules_whose_base_got_another_tokenizer_are_not_saved_with_it(tmp_path):
    model = load("tiny", modules="auto")
    with pytest.raises(ValueError, match="the modules were made for the tokenizer of hash"):
        save(dataclasses.replace(model, tokenizer=None), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_modules_belong_to_what_is_written_in_float16(tmp_path):
    save(load("tiny", modules="auto", dtype=jnp.float16), tmp_path / "out")
    assert load(tmp_path / "out", modules="auto").modules is not None


@pytest.mark.parametrize("eos", ["abc", {"a": 1}, True, [1.5], [-1], [1, 10**6]])
def test_stop_tokens_that_are_none_are_refused(tmp_path, eos):
    save(load("tiny"), tmp_path / "out")
    (tmp_path / "out/generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id must be tokens below the vocabulary"):
        load(tmp_path / "out")
