"""Files of questions with their documents: in SQuAD's form, or in HotpotQA's."""

import json
from pathlib import Path
from typing import Any

from eval.tasks.ruler.passages import Asked
from jax_smash.serve.prompts import checked_text


def read_questions(path: Path) -> list[Asked]:
    """Returns the questions of a JSON file that have an answer, in order.

    Args:
      path: either {"data": [{"paragraphs": [{"context": …, "qas": [{"question": …, "answers": [{"text": …}]}]}]}]}, or
        a list of {"question": …, "answer": …, "context": [[title, [sentence, …]], …], "supporting_facts":
        [[title, …], …]}, whose other documents count too.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not JSON or has another form, or no question has an answer.
    """
    if not path.is_file():
        raise FileNotFoundError(f"file of questions does not exist: {path}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    try:
        found = _hotpot(content) if isinstance(content, list) else _squad(content)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        message = f"{path} must hold questions in the form of SQuAD or HotpotQA; {type(error).__name__}: {error}"
        raise ValueError(message) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not found:
        raise ValueError(f"{path} must hold at least one question with an answer; got none")
    return found


def _squad(content: Any) -> list[Asked]:
    return [
        Asked(_text(asked["question"]), answers, (_text(paragraph["context"]),))
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
        if (answers := tuple(dict.fromkeys(_text(answer["text"]) for answer in asked["answers"])))
    ]


def _hotpot(content: list[Any]) -> list[Asked]:
    found = []
    for entry in content:
        wanted = {fact[0] for fact in entry["supporting_facts"]}
        documents = {title: f"{_text(title)}\n{_text(''.join(lines))}" for title, lines in entry["context"]}
        gold, beside = (
            tuple(t for title, t in documents.items() if (title in wanted) == kept) for kept in (True, False)
        )
        if not gold:
            raise ValueError(f"supporting_facts must name a title of the context; got {sorted(wanted)}")
        found.append(Asked(_text(entry["question"]), (_text(entry["answer"]),), gold, beside))
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text; got {value!r}")
    return checked_text(value).strip()
