"""Answers found in the prompt alone, by rules."""

import re
from collections import Counter


def needles(prompt):
    text, question = prompt.rsplit("Question:", 1)
    told = re.findall(r"The secret \w+ of (\S+) is (\S+)\.", text)
    return ", ".join(value for key, value in told if key in question)


def variables(prompt):
    text, question = prompt.rsplit("Question:", 1)
    values = dict(re.findall(r"Let (\w+) be (\d+)\.", text))
    for later, earlier in re.findall(r"Let (\w+) be equal to (\w+)\.", text):
        values[later] = values[earlier]
    return " ".join(name for name, value in values.items() if value in question)


def common_words(prompt):
    listed = prompt.rsplit("Remember those.", 1)[1].rsplit("Question:", 1)[0]
    counted = Counter(re.findall(r"\d+\. (\w+)", listed))
    return " ".join(word for word, _ in counted.most_common(10))


def frequent_words(prompt):
    counted = Counter(prompt.split("\n\n")[1].split())
    return " ".join(word for word, _ in counted.most_common(4)[1:])


ARTICLES = {
    r"town of (\w+) lie": r"{} is a small town on the river (\w+)",
    r"founded the town of (\w+)": r"{} is a small town .*? founded by (\w+ \w+) in",
    r"was the town of (\w+) founded": r"{} is a small town .*? the year (\d+)",
    r"market of (\w+)": r"{} is a small town .*? each (\w+) there",
    r"Where was (.*) born": r"{} was a \w+ who was born in (\w+)",
    r"profession of (\w+ \w+)": r"{} was a (\w+) who",
    r"year was (\w+ \w+) born": r"{} was a .*? the year (\d+)",
    r"animal did (.*) keep": r"{} kept a (\w+)",
    r"was the ship (\w+) built": r"The {} was a sailing ship .*? the year (\d+)",
    r"captain of the ship (\w+)": r"The {} was a sailing ship .*? captain (\w+ \w+) it",
    r"did the ship (\w+) carry": r"The {} was a sailing ship .*? carried (\w+) over",
    r"was the ship (\w+) lost": r"The {} was a sailing ship .*? lost near (\w+)",
    r"Who wrote (The Song of \w+)": r"{} is a long poem that (\w+ \w+) wrote",
    r"was (The Song of \w+) written": r"{} is a long poem .*? the year (\d+)",
    r"is (The Song of \w+) sung": r"{} is a long poem .*? sung in (\w+)",
}


def one_document(prompt):
    text, question = prompt.rsplit("Question:", 1)
    ((name, rule),) = ((found[1], rule) for asked, rule in ARTICLES.items() if (found := re.search(asked, question)))
    return re.search(rule.format(name), text)[1]


def two_documents(prompt):
    text, question = prompt.rsplit("Question:", 1)
    (person,) = re.findall(r"where (\w+ \w+) was born", question)
    (town,) = re.findall(rf"{person} was a \w+ who was born in (\w+)", text)
    return re.search(rf"{town} is a small town on the river (\w+)", text)[1]


def solver(task):
    """Returns the rule that solves a task."""
    others = {
        "vt": variables,
        "cwe": common_words,
        "fwe": frequent_words,
        "qa_1": one_document,
        "qa_2": two_documents,
    }
    return others.get(task, needles)
