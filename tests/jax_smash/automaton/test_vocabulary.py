import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from jax_smash.automaton import token_bytes
from jax_smash.automaton.vocabulary import byte_alphabet
from tests.tokenizers import TEXT, byte_tokenizer, decode, small_bpe, small_sentencepiece

TEXTS = [TEXT, " a leading space", "日本語 😀", "tabs\tand\nlines\r\n", "<0x41> ▁"]


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("make", [byte_tokenizer, small_bpe], ids=["bytes", "bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_byte_level_tokens_make_up_the_text(make, text):
    tokenizer = make()
    assert decode(ids_of(tokenizer, text), token_bytes(tokenizer)) == text
    assert decode(ids_of(tokenizer, text), token_bytes(tokenizer)) == tokenizer.decode(ids_of(tokenizer, text))


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_the_bytes_of_sentencepiece_tokens_make_up_the_text_behind_a_space(text):
    tokenizer = small_sentencepiece()
    ids = ids_of(tokenizer, text)
    ours = decode(ids, token_bytes(tokenizer))
    assert ours.removeprefix(" ") == tokenizer.decode(ids)
    assert ours.removeprefix(" ") == text.removeprefix(" ")


def test_a_metaspace_decoder_is_understood():
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2}, merges=[("▁", "a")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert token_bytes(tokenizer) == [b" ", b"a", b" a"]


def test_special_tokens_have_no_bytes_and_added_ones_do():
    tokenizer = Tokenizer.from_str(small_bpe().backend_tokenizer.to_str())
    tokenizer.add_tokens(["né w", "plain"])
    tokens = token_bytes(tokenizer)
    assert tokens[-2:] == ["né w".encode(), b"plain"]
    assert [i for i, text in enumerate(tokens) if not text] == [0, 1, 2]


def test_a_larger_vocabulary_is_padded_and_a_smaller_one_cut():
    tokens = token_bytes(byte_tokenizer())
    assert len(tokens) == 259
    assert token_bytes(byte_tokenizer(), 300) == tokens + [b""] * 41
    assert token_bytes(byte_tokenizer(), 100) == tokens[:100]


def test_the_alphabet_is_that_of_the_tokenizers_package():
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_a_tokenizer_without_a_fast_backend_is_refused():
    with pytest.raises(TypeError, match="tokenizers package; got dict"):
        token_bytes({})


@pytest.mark.parametrize(("decoder", "name"), [(decoders.WordPiece(), "WordPiece"), (None, "none")])
def test_an_unknown_decoder_is_named(decoder, name):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(ValueError, match=f"decoder must be ByteLevel.*got {name}"):
        token_bytes(tokenizer)
