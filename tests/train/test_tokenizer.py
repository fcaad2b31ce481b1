import json

import pytest
from transformers import AutoTokenizer

from train.tokenizer import BOS, SPECIAL_TOKENS, main, save_tokenizer, train_tokenizer

TEXTS = ["Once upon a time there was a fox.", "The fox had 12 hens.", "A hen said: go away, fox!"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(TEXTS * 4, 300), folder)
    return AutoTokenizer.from_pretrained(folder)


def test_special_tokens_have_the_first_ids(loaded):
    assert loaded.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 6)
    assert loaded.model_max_length == 2048


@pytest.mark.parametrize("text", ["Once upon", " two  spaces", "tabs\tand\nlines\n", "naïve – 日本 🦊", "\x00\x7f", ""])
def test_any_text_survives_a_round_trip(loaded, text):
    ids = loaded(text).input_ids
    assert ids[0] == loaded.bos_token_id
    assert loaded.decode(ids[1:]) == text


def test_each_digit_is_a_token(loaded):
    ids = loaded("1234", add_special_tokens=False).input_ids
    assert [loaded.decode([i]) for i in ids] == ["1", "2", "3", "4"]


def test_the_chat_template_frames_each_turn(loaded):
    chat = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hello\n"},
        {"role": "assistant", "content": "Hi, fox."},
    ]
    text = "<|bos|><|system|>Be kind.<|end|><|user|>Hello<|end|><|assistant|>Hi, fox.<|end|>"
    assert loaded.apply_chat_template(chat, tokenize=False) == text
    prompt = loaded.apply_chat_template(chat[:2], add_generation_prompt=True)["input_ids"]
    whole = loaded.apply_chat_template(chat)["input_ids"]
    assert whole[: len(prompt)] == prompt
    assert loaded.decode(whole[len(prompt) :]) == "Hi, fox.<|end|>"
    assert whole.count(loaded.bos_token_id) == 1


def test_a_role_the_template_lacks_is_refused(loaded):
    with pytest.raises(Exception, match="role must be system, user or assistant; got tool"):
        loaded.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_a_saved_copy_keeps_ids_and_template(loaded, tmp_path):
    loaded.save_pretrained(tmp_path)
    copy = AutoTokenizer.from_pretrained(tmp_path)
    assert copy.chat_template == loaded.chat_template
    assert copy(TEXTS).input_ids == loaded(TEXTS).input_ids


def test_training_twice_gives_the_same_tokenizer():
    assert train_tokenizer(TEXTS, 280).to_str() == train_tokenizer(TEXTS, 280).to_str()


def test_a_vocabulary_smaller_than_its_bytes_is_refused():
    with pytest.raises(ValueError, match="vocab_size must be at least 263; got 262"):
        train_tokenizer(TEXTS, 262)


def test_the_program_reads_files_and_folders(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "a.txt").write_text("zebra " * 20)
    (tmp_path / "more" / "b.jsonl").write_text(json.dumps({"turns": ["walrus " * 20, "walrus " * 20]}))
    main(tmp_path / "out", data=(str(tmp_path / "a.txt"), str(tmp_path / "more")), vocab_size=290)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("zebra walrus") == ["zebra", "Ġwalrus"]
    assert tokenizer.bos_token == BOS


def test_the_program_refuses_two_descriptions_of_its_data(tmp_path):
    with pytest.raises(ValueError, match="either --data or --corpus"):
        main(tmp_path)
