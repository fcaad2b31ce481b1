import functools
import re
from collections import Counter
from statistics import mean

import pytest

from jax_smash.tasks import examples
from jax_smash.tasks.key_value import NUMBERS, TOKENS


@pytest.fixture(scope="module", params=["train", "test"])
def drawn(request, corpus):
    return corpus["key_value", request.param]


@functools.cache
def patterns():
    made = []
    for line, question in NUMBERS + TOKENS:
        told = (
            re.escape(line)
            .replace(r"\{k\}", r"(?P<key>[a-z ]+?)")
            .replace(r"\{v\}", r"(?P<value>[a-z]+(?: [a-z]+)?|\d+)")
        )
        asked = re.escape(question).replace(r"\{k\}", r"(?P<key>[a-z ]+?)")
        made.append((re.compile(f"(?:^|(?<=[\\s])){told}(?=\\s|$)", re.MULTILINE), re.compile(asked), line))
    return made


@functools.cache
def pairs_and_key(example):
    """Returns the pairs and the asked key, read with the only phrasing that fits the example."""
    context, _, tail = example.prompt.rpartition("\n\n")
    for told, asked, line in patterns():
        pairs = [(m["key"], m["value"]) for m in told.finditer(context)]
        rest = told.sub("", context).strip()
        if not pairs or rest:
            continue
        if tail.startswith("Question:"):
            found = asked.fullmatch(tail.removeprefix("Question: ").removesuffix("\nAnswer:"))
        else:
            found = re.fullmatch(
                re.escape(line.partition("{v}")[0].rstrip()).replace(r"\{k\}", "(?P<key>[a-z ]+)"), tail
            )
        if found:
            return pairs, found["key"]
    raise AssertionError(example.prompt)


def test_looking_up_the_key_gives_the_answer_and_keys_occur_once(drawn):
    for example in drawn:
        pairs, key = pairs_and_key(example)
        assert len(dict(pairs)) == len(pairs)
        assert dict(pairs)[key] == example.answer


def test_more_length_means_more_pairs():
    short, long = (
        mean(len(pairs_and_key(e)[0]) for e in examples("key_value", split="train", count=20, seed=1, length=length))
        for length in (40, 400)
    )
    assert long > 7 * short


def test_no_place_in_the_list_and_no_count_is_a_good_guess(drawn):
    shares = Counter()
    for example in drawn:
        values = [value for _, value in pairs_and_key(example)[0]]
        shares["first"] += values[0] == example.answer
        shares["last"] += values[-1] == example.answer
        shares["most frequent"] += Counter(values).most_common(1)[0][0] == example.answer
    assert max(shares.values()) < 0.2 * len(drawn)


def test_the_chat_asks_for_the_same_key(drawn):
    for example in drawn:
        context, _, question = example.messages[0]["content"].rpartition("\n\n")
        assert context == example.prompt.rpartition("\n\n")[0]
        assert pairs_and_key(example)[1] in question
        assert question.endswith("?")


def test_keys_and_values_are_words_as_well_as_numbers(drawn):
    numeric = mean(example.answer.isdigit() for example in drawn)
    assert 0.4 < numeric < 0.6
