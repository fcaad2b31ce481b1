import re
from collections import Counter
from statistics import mean

import pytest

from jax_smash.tasks.coreference import RELATIONS
from jax_smash.tasks.words import WORDS

PEOPLE = {name for split in WORDS for name in WORDS[split].people}
# What the last sentence says, and what the sentence that told the place must have said.
CLUES = {
    "grandmother": "grandmother",
    "born": "born",
    "secret valley": "secret valley",
    "dream": "dream",
    "gold": "gold",
    "new house": "moved",
    "island": "sea",
    "king": "king",
}
NAME = re.compile(r"\b(?:in|of|called|named|name|to|was|is) ([A-Z][a-z]+)")
INVENTED = re.compile(r"[A-Z][a-z]{3,}")


@pytest.fixture(scope="module", params=["train", "test"])
def drawn(request, corpus):
    return corpus["coreference", request.param]


def solve(prompt):
    """Returns the place that a reader finds who looks for the last sentence's person and what is said of them."""
    sentences = re.split(r'(?<=[.!?])\s+|(?<=[.!?]")\s+', prompt)
    tie = next(i for i in range(len(sentences) - 1, -1, -1) if set(re.findall(r"\w+", sentences[i])) & PEOPLE)
    asked = " ".join(sentences[tie:])
    person = next(word for word in re.findall(r"\w+", sentences[tie]) if word in PEOPLE)
    clue = next(lead for words, lead in CLUES.items() if words in asked)
    for i, sentence in enumerate(sentences[:tie]):
        if person in re.findall(r"\w+", sentence) and clue in sentence:
            for told in sentences[i : i + 2]:
                names = [name for name in NAME.findall(told) if name not in PEOPLE]
                if names:
                    return names[-1]
    return None


def invented(example):
    """Returns all capitalised words inside sentences that are nobody's name in the lists, in order."""
    words = re.findall(r"(?<![.!?] )(?<!\n)(?<!^)\b([A-Z][a-z]+)", example.prompt)
    return [word for word in words if word not in PEOPLE]


def test_person_and_relation_alone_lead_to_the_place(drawn):
    wrong = [example for example in drawn if solve(example.prompt) != example.answer]
    assert not wrong, wrong[0].text


def test_the_place_is_told_exactly_once(drawn):
    assert all(len(re.findall(rf"\b{example.answer}\b", example.prompt)) == 1 for example in drawn)


def test_the_chat_holds_the_lead_and_asks_for_the_person(drawn):
    for example in drawn:
        context, _, question = example.messages[0]["content"].rpartition("\n\n")
        assert example.answer in context
        assert any(name in question for name in PEOPLE)
        assert question.endswith("? Answer with one name.")


def test_the_lead_stands_at_the_beginning_and_far_from_the_end(drawn):
    words_between = [len(example.prompt.partition(example.answer)[2].split()) for example in drawn]
    assert mean(words_between) > 70


def share(drawn, guess):
    return mean(guess(example) == example.answer for example in drawn)


def test_copying_a_capitalised_word_by_its_place_or_its_count_fails(drawn):
    def last(example):
        return re.findall(r"\b[A-Z][a-z]+", example.prompt)[-1]

    def most_frequent(example):
        return Counter(re.findall(r"\b[A-Z][a-z]+", example.prompt)).most_common(1)[0][0]

    assert share(drawn, last) < 0.05
    assert share(drawn, most_frequent) < 0.05


def test_copying_the_last_or_the_most_frequent_invented_name_fails(drawn):
    assert share(drawn, lambda example: (invented(example) or [""])[-1]) < 0.4
    assert share(drawn, lambda example: Counter([*invented(example), ""]).most_common(1)[0][0]) < 0.4


def test_a_guess_among_the_invented_names_is_seldom_right(drawn):
    assert mean(1 / max(1, len(set(invented(example)))) for example in drawn) < 0.35


def test_some_examples_tell_the_same_of_another_person(drawn):
    def leads(example):
        return len(re.findall(r"was born in|secret valley|gold|moved to|king of", example.prompt))

    assert 0.05 < mean(leads(example) > 2 for example in drawn) < 0.6


def test_there_are_at_least_a_dozen_leads_and_ties():
    assert len({lead for relation in RELATIONS for lead in relation.leads}) >= 12
    assert len({tie for relation in RELATIONS for tie in relation.ties}) >= 12


def test_every_lead_and_every_tie_names_the_person():
    for relation in RELATIONS:
        assert all("{p}" in text for text in (*relation.leads, *relation.ties, relation.question))
        assert all(lead.count("{x}") == 1 for lead in relation.leads)
