"""Tokenizers of GGUF files, and models that have none."""

import gguf
import jax
import numpy as np
import pytest

import jax_smash
from jax_smash.checkpoints.convert import convert
from jax_smash.checkpoints.gguf import open_gguf
from jax_smash.checkpoints.gguf.tokenizer import gguf_tokenizer
from jax_smash.checkpoints.smasher import tokenizer_sha256
from tests.checkpoints import LLAMA, random_tensors
from tests.gguf_files import write_gguf
from tests.tokenizers import TEXT, small_bpe

RAW = {**LLAMA, "vocab_size": 420}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "model.gguf", RAW, random_tensors(RAW), tokenizer=small_bpe())


def test_text_is_cut_as_by_the_tokenizer_that_was_written(path):
    tokenizer = gguf_tokenizer(open_gguf(path))
    for line in TEXT.splitlines():
        assert tokenizer(line)["input_ids"] == small_bpe()(line)["input_ids"]
        assert tokenizer.decode(tokenizer(line)["input_ids"]) == line
    assert tokenizer("a<|eos|>")["input_ids"][-1] == small_bpe().eos_token_id


def test_a_file_decodes_prompts_and_chats(path):
    model = jax_smash.load(path)
    assert model.stop_tokens == (small_bpe().eos_token_id,)
    assert model.encode_chat([{"role": "user", "content": "cat"}]) == small_bpe()("user: cat\nassistant:")["input_ids"]
    assert jax_smash.generate(model, "The cat", max_new_tokens=4)[0].new_tokens > 0


def written(folder, **options):
    return gguf_tokenizer(open_gguf(write_gguf(folder / "model.gguf", RAW, random_tensors(RAW), **options)))


@pytest.mark.parametrize(
    ("splits", "pieces"),
    [("gpt-2", ["a", "Ġ", "Ġ12"]), ("smollm", ["a", "ĠĠ", "1", "2"]), ("qwen2", ["a", "Ġ", "Ġ", "1", "2"])],
)
def test_text_is_split_by_the_rule_that_the_file_names(splits, pieces, tmp_path):
    backend = written(tmp_path, tokenizer=small_bpe(), splits=splits).backend_tokenizer
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("a  12")] == pieces


@pytest.mark.parametrize(("splits", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_texts_begin_with_a_token_by_the_rules_of_models_that_have_one(splits, begins, tmp_path):
    found = written(tmp_path, tokenizer=small_bpe(), splits=splits)("cat")["input_ids"]
    assert (found[0] == small_bpe().bos_token_id) == begins
    off = {"tokenizer.ggml.add_bos_token": False}
    found = written(tmp_path, tokenizer=small_bpe(), splits=splits, tokenizer_fields=off)("cat")["input_ids"]
    assert found[0] != small_bpe().bos_token_id


def test_a_word_that_is_a_token_is_not_cut_by_llama_3s_rule(tmp_path):
    # No merges make it.
    spare, word = small_bpe().convert_ids_to_tokens(419), "zqx"
    for splits, whole in (("llama-bpe", True), ("qwen2", False)):
        tokenizer = written(tmp_path, tokenizer=small_bpe(), splits=splits, renamed={spare: word})
        assert (tokenizer(word, add_special_tokens=False)["input_ids"] == [419]) == whole


def test_the_end_of_a_turn_ends_a_text_though_the_file_names_another(tmp_path):
    spare = small_bpe().convert_ids_to_tokens(419)
    file = tmp_path / "model.gguf"
    write_gguf(file, RAW, random_tensors(RAW), tokenizer=small_bpe(), renamed={spare: "<end_of_turn>"})
    for path in (file, convert(file, tmp_path / "converted", to="huggingface")):
        model = jax_smash.load(path)
        assert {*model.stop_tokens} == {small_bpe().eos_token_id, 419}
        # It was written as ordinary text.
        assert model.encode("a<end_of_turn>")[-1] == 419


def test_a_rule_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match="it splits text by rule 'gpt-9', which is not known"):
        written(tmp_path, tokenizer=small_bpe(), splits="gpt-9")


def test_a_kind_that_is_not_known_is_refused(path, tmp_path):
    key = b"tokenizer.ggml.model"
    content = path.read_bytes()
    at = content.index(key) + len(key) + 4 + 8  # Behind the type and the length.
    broken = tmp_path / "model.gguf"
    broken.write_bytes(content[:at] + b"bert" + content[at + 4 :])
    with pytest.raises(ValueError, match=r"cannot read the tokenizer in .*model.gguf"):
        gguf_tokenizer(open_gguf(broken))


def test_a_model_without_a_tokenizer_takes_tokens_alone(tmp_path):
    model = jax_smash.load(write_gguf(tmp_path / "model.gguf", LLAMA, random_tensors(LLAMA)))
    assert model.tokenizer is None
    assert len(jax_smash.generate(model, [3, 1, 4], max_new_tokens=4)[0].token_ids) == 4
    with pytest.raises(ValueError, match="has no tokenizer"):
        jax_smash.generate(model, "text")


@pytest.mark.parametrize("to", ["huggingface", "orbax"])
def test_a_converted_file_is_the_same_model(path, tmp_path, to):
    target = convert(path, tmp_path / "converted", to=to)
    ours, theirs = jax_smash.load(path), jax_smash.load(target)
    assert (ours.config, ours.stop_tokens) == (theirs.config, theirs.stop_tokens)
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)
    assert ours.encode("The cat, 12.") == theirs.encode("The cat, 12.")
    assert tokenizer_sha256(path) == tokenizer_sha256(target) != ""
    assert theirs.tokenizer.chat_template == ours.tokenizer.chat_template


def test_token_types_are_those_of_the_package():
    # transformers' builder compares with these numbers.
    assert (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED) == (3, 4)
