import re
from collections import Counter
from statistics import mean

import pytest

GO = re.compile(r"(\w+) (?:went|moved|walked|ran) to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:picked up|took|got) the (\w+)\.")
DROP = re.compile(r"(\w+) (?:put down|dropped|left) the (\w+)(?: there)?\.")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.")
SPLIT = re.compile(r"(?<=\.) ")


@pytest.fixture(scope="module", params=["train", "test"])
def drawn(request, corpus):
    return corpus["state", request.param]


def follow(story):
    """Reads a story; returns where people are, who holds what and where each thing has been, one entry a sentence."""
    where, holder, been = {}, {}, {}
    for sentence in SPLIT.split(story):
        if match := GO.fullmatch(sentence):
            person, place = match.groups()
            where[person] = place
        elif match := TAKE.fullmatch(sentence):
            person, thing = match.groups()
            assert thing not in holder
            assert thing not in been or been[thing][-1] == where[person]
            holder[thing] = person
        elif match := DROP.fullmatch(sentence):
            person, thing = match.groups()
            assert holder.pop(thing) == person
        elif match := GIVE.fullmatch(sentence):
            person, thing, other = match.groups()
            assert holder[thing] == person
            assert where[person] == where[other]
            holder[thing] = other
        else:
            assert re.fullmatch(r"\w+ (was tired|sang a song|smiled at \w+|waited for \w+|looked around)\.", sentence)
        for thing, person in holder.items():
            been.setdefault(thing, []).append(where[person])
    return where, holder, been


def solve(prompt):
    story, _, asked = prompt.rpartition("\n\n")
    where, holder, been = follow(story)
    if match := re.search(r"[Ww]here was the (\w+) before the (\w+)\?|Before the (\w+), the (\w+) was in the$", asked):
        thing, place = (match[1], match[2]) if match[1] else (match[4], match[3])
        path = been[thing]
        first = path.index(place)
        stay = (
            len(path) - first if path[-1] == place else path[first:].index(next(p for p in path[first:] if p != place))
        )
        assert place not in path[first + stay :]
        return path[first - 1]
    if match := re.search(r"has the (\w+)", asked):
        return holder[match[1]]
    name = re.search(r"Where is (?:the )?(\w+)\?|(\w+) is now in the$", asked)
    name = name[1] or name[2]
    return where[name] if name in where else been[name][-1]


def test_following_the_story_gives_the_answer_and_nobody_does_the_impossible(drawn):
    assert [solve(example.prompt) for example in drawn] == [example.answer for example in drawn]


def test_answers_are_one_word(drawn):
    assert all(re.fullmatch(r"[A-Za-z]+", example.answer) for example in drawn)


def test_all_questions_come_up_in_both_forms(drawn):
    counts = Counter()
    for example in drawn:
        asked = example.prompt.rpartition("\n\n")[2]
        kind = next(k for k in ("has", "efore", "Where is the", "Where is", "The ", "is now") if k in asked)
        counts[kind, asked.startswith("Question")] += 1
    assert len(counts) == 8
    assert min(counts.values()) > 0.03 * len(drawn)


def guesses(example):
    story = example.prompt.rpartition("\n\n")[0]
    places = re.findall(r"to the (\w+)\.", story)
    people = re.findall(r"\b[A-Z]\w+", story)
    person = example.answer[0].isupper()
    named = people if person else places
    return {
        "the last capitalised word": people[-1],
        "the last of its kind": named[-1],
        "the first of its kind": named[0],
        "the most frequent of its kind": Counter(named).most_common(1)[0][0],
    }


def test_no_simple_guess_is_right_in_four_of_ten_cases(drawn):
    right = Counter()
    for example in drawn:
        for name, guess in guesses(example).items():
            right[name] += guess == example.answer
    assert max(right.values()) < 0.4 * len(drawn), right


def test_what_the_answer_rests_on_is_often_far_back(drawn):
    distances = []
    for example in drawn:
        story = example.prompt.rpartition("\n\n")[0]
        if example.answer in story:
            distances.append(len(story.rpartition(example.answer)[2].split()))
    assert mean(distance > 25 for distance in distances) > 0.2


def test_the_chat_tells_the_same_story(drawn):
    for example in drawn:
        story, _, question = example.messages[0]["content"].rpartition("\n\n")
        assert story == example.prompt.rpartition("\n\n")[0]
        assert question.endswith("? Answer with one word.")
