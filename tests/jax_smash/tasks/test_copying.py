import re
from collections import Counter
from statistics import mean

import pytest


@pytest.fixture(scope="module", params=["train", "test"])
def drawn(request, corpus):
    return corpus["copying", request.param]


def solve(example):
    """Returns what the last line asks for."""
    last = example.prompt.splitlines()[-1]
    label = re.fullmatch(r"Repeat list (.+):", last)
    if label:
        (listed,) = re.findall(rf"^List {label[1]}: (.+)\.$", example.prompt, re.MULTILINE)
        return listed
    command, items = re.fullmatch(r"(Copy|Repeat|Reverse): (.+)", last).groups()
    return " ".join(items.split()[::-1]) if command == "Reverse" else items


def test_doing_what_the_last_line_says_gives_the_answer(drawn):
    assert [solve(example) for example in drawn] == [example.answer for example in drawn]


def test_copies_that_are_shown_are_right(drawn):
    shown = 0
    for example in drawn:
        for command, items, copy in re.findall(r"^(Copy|Repeat|Reverse): (.+)\n(.+)\n", example.prompt, re.MULTILINE):
            assert copy.split() == (items.split()[::-1] if command == "Reverse" else items.split())
            shown += 1
    assert shown > len(drawn)


def test_labels_occur_once(drawn):
    for example in drawn:
        labels = re.findall(r"^List (.+):", example.prompt, re.MULTILINE)
        assert len(set(labels)) == len(labels)


def test_the_first_and_the_last_list_are_no_good_guess(drawn):
    lists = [(re.findall(r"^List .+: (.+)\.$", e.prompt, re.MULTILINE), e.answer) for e in drawn]
    lists = [(listed, answer) for listed, answer in lists if listed]
    assert len(lists) > 300
    assert mean(listed[0] == answer for listed, answer in lists) < 0.4
    assert mean(listed[-1] == answer for listed, answer in lists) < 0.4


def test_all_forms_come_up(drawn):
    forms = Counter(example.prompt.splitlines()[-1].split()[0] + str(len(example.answer) > 30) for example in drawn)
    assert all(forms[form] > 20 for form in ("Copy:True", "Copy:False", "Repeat:False", "RepeatTrue", "RepeatFalse"))
    assert forms["Reverse:False"] > 50


def test_separators_follow_the_form(drawn):
    for example in drawn:
        assert example.separator == (" " if example.prompt.endswith(":") else "\n")


def test_the_chat_holds_the_sequence(drawn):
    for example in drawn:
        content = example.messages[0]["content"]
        assert example.answer in content or " ".join(example.answer.split()[::-1]) in content


def test_shown_answers_are_those_of_the_copies_in_the_prompt(drawn):
    for example in drawn:
        copies = re.findall(r"^(?:Copy|Repeat|Reverse): .+\n(.+)\n", example.prompt, re.MULTILINE)
        assert example.shown == tuple(copies)
    assert any(example.shown for example in drawn)
