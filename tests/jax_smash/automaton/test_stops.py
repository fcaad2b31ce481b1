import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_smash.automaton import StreamDecoder, cut, held_back, stop_automaton, token_bytes
from tests.tokenizers import TEXT, decode, small_bpe, small_sentencepiece

TOKENS = [b"a", b"b", b"ab", b"ba", b"", b"abba", b"c", b"\xc3", b"\xa9", "é".encode(), b" ca", b"\xff"]
ids = st.lists(st.integers(0, len(TOKENS) - 1), max_size=14)
stop_strings = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3)


def first_match(text, stops):
    """Reads one character at a time; returns how many it had read, and what of the text comes before the match."""
    for end in range(1, len(text) + 1):
        ended = [s for s in stops if text[:end].endswith(s)]
        if ended:
            stop = max(ended, key=len)
            return end, text[: end - len(stop)], stop
    return None


@jax.jit
def stops_met(automaton, tokens):
    return automaton.matched(automaton.trace(automaton.start(tokens.shape[0]), tokens))


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(ids, min_size=20, max_size=20), stops=stop_strings)
def test_a_stop_is_matched_by_the_token_that_completes_it(tokens, stops):
    automaton = stop_automaton(stops, TOKENS)
    padded = np.full((len(tokens), 14), -1, np.int32)
    for row, sequence in enumerate(tokens):
        padded[row, : len(sequence)] = sequence
    matched = np.asarray(stops_met(automaton, jnp.asarray(padded)))
    for row, sequence in enumerate(tokens):
        for place in range(len(sequence)):
            text = b"".join(TOKENS[i] for i in sequence[: place + 1])
            assert matched[row, place] == any(text.find(s.encode()) >= 0 for s in stops)


def test_a_stop_inside_the_beginning_of_another_is_matched():
    automaton = stop_automaton(["abbac", "bb", "é"], TOKENS)
    matched = stops_met(automaton, jnp.array([[0, 1, 1, 6], [0, 1, 6, 1], [7, 8, 0, 0]], jnp.int32))
    np.testing.assert_array_equal(matched, [[False, False, True, True], [False] * 4, [False, True, True, True]])


def test_stops_are_found_in_real_tokens():
    tokenizer = small_bpe()
    tokens = token_bytes(tokenizer)
    stops = ["STOP", "bed, and", "Brücke;"]
    automaton = stop_automaton(stops, tokens)
    sequence = tokenizer.encode(TEXT)
    states = automaton.trace(automaton.start(1), jnp.asarray([sequence], jnp.int32))
    place = int(np.argmax(np.asarray(automaton.matched(states))[0]))
    before, read = decode(sequence[:place], tokens), decode(sequence[: place + 1], tokens)
    assert "bed, and" not in before
    assert "bed, and" in read


def test_every_token_stays_allowed():
    automaton = stop_automaton(["ab"], TOKENS)
    states = automaton.trace(automaton.start(1), jnp.array([[0, 1, 4, 6]], jnp.int32))
    assert np.asarray(automaton.allowed(states)).all()


@pytest.mark.parametrize("stops", [[], [""], ["a", ""]])
def test_no_stop_string_and_an_empty_one_are_errors(stops):
    with pytest.raises(ValueError, match="at least one, and none empty"):
        stop_automaton(stops, TOKENS)
    if stops:
        with pytest.raises(ValueError, match="at least one, and none empty"):
            StreamDecoder(TOKENS, stops)


def test_stop_strings_that_are_too_long_are_an_error():
    with pytest.raises(ValueError, match="fewer than 16384 bytes together; got 20000"):
        stop_automaton(["a" * 20_000], TOKENS)


@settings(max_examples=300, deadline=None)
@given(text=st.text("abbé", max_size=20), stops=stop_strings)
def test_text_is_cut_where_a_reader_would_first_see_a_stop(text, stops):
    found = first_match(text, stops)
    assert cut(text, stops) == ((text, None) if found is None else found[1:])


def test_the_stop_that_ends_first_cuts_and_of_those_the_longest():
    assert cut("xabcd", ["abcd", "bc"]) == ("xa", "bc")
    assert cut("xabcd", ["b", "xab", "ab"]) == ("", "xab")


def test_one_stop_is_cut_where_find_finds_it():
    text = "once upon a time. The end. And more. The end."
    assert cut(text, ["The end."]) == (text[: text.find("The end.")], "The end.")
    assert cut(text, ["never"]) == (text, None)
    assert cut(text, []) == (text, None)


@settings(max_examples=300, deadline=None)
@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=3))
def test_as_much_is_held_back_as_could_begin_a_stop(text, stops):
    expected = max(n for n in range(len(text) + 1) if n == 0 or any(s[:n] == text[-n:] and len(s) > n for s in stops))
    assert held_back(text, stops) == expected


@settings(max_examples=300, deadline=None)
@given(sequence=ids, stops=st.one_of(st.just([]), stop_strings), sizes=st.lists(st.integers(0, 3), max_size=14))
def test_streamed_pieces_make_up_the_text_cut_at_the_stop(sequence, stops, sizes):
    whole, matched = cut(decode(sequence, TOKENS), stops)
    decoder, pieces, place = StreamDecoder(TOKENS, stops), [], 0
    for size in [*sizes, len(sequence)]:
        pieces.append(decoder.feed(sequence[place : place + size]))
        place += size
        assert whole.startswith("".join(pieces))
    assert "".join([*pieces, decoder.finish()]) == whole
    assert decoder.matched == matched


@pytest.mark.parametrize("make", [small_bpe, small_sentencepiece], ids=["bpe", "sentencepiece"])
def test_a_stream_of_real_tokens_equals_the_tokenizers_own_text(make):
    tokenizer = make()
    sequence = tokenizer.encode(TEXT, add_special_tokens=False)
    decoder = StreamDecoder(token_bytes(tokenizer))
    pieces = [decoder.feed([token]) for token in sequence]
    assert "�" not in "".join(pieces)
    assert ("".join(pieces) + decoder.finish()).removeprefix(" ") == tokenizer.decode(sequence)


def test_a_character_is_shown_when_it_is_whole():
    decoder = StreamDecoder(TOKENS)
    assert [decoder.feed([7]), decoder.feed([8]), decoder.feed([7]), decoder.finish()] == ["", "é", "", "�"]


def test_nothing_is_shown_after_a_stop():
    decoder = StreamDecoder(TOKENS, ["bb"])
    assert [decoder.feed([2]), decoder.feed([1, 6]), decoder.feed([0]), decoder.finish()] == ["a", "", "", ""]
    assert decoder.matched == "bb"


def test_a_held_back_beginning_is_shown_at_the_end():
    decoder = StreamDecoder(TOKENS, ["abc"])
    assert [decoder.feed([2]), decoder.finish()] == ["", "ab"]
    assert decoder.matched is None


def test_a_string_is_not_taken_for_a_list_of_stops():
    with pytest.raises(TypeError, match="sequence of strings"):
        stop_automaton("stop", TOKENS)
