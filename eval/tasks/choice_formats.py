"""The shapes in which multiple-choice data sets come, each read into choices.

Every format also takes the plain shape {"query", "choices", "gold"}, or {"context_options", "continuation", "gold"}
where contexts differ and the continuation does not.
"""

import dataclasses
import re
from collections.abc import Callable

from eval.tasks.choices import Choice, ChoiceSet
from eval.tasks.records import Record, front, read_records

_BRACKETS = re.compile(r"\[.*?\]")


def choice_set(task: str, source: str, *, count: int | None, shots: int = 0) -> ChoiceSet:
    """Returns the questions of a data set.

    Args:
      task: a name in `FORMATS`.
      source: a file or a hub data set.
      count: questions, from the front; None takes all.
      shots: solved questions before each, from the front of the data set, which are then not asked.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, or there are fewer than `count`.
    """
    read, records = FORMATS[task], read_records(source)
    if len(records) <= shots:
        raise ValueError(f"{source} must have questions beside {shots} solved ones; got {len(records)}")
    solved = "".join(_solved(read(record)) for record in records[:shots])
    choices = [read(record) for record in front(records[shots:], count, source)]
    if solved:
        choices = [dataclasses.replace(c, contexts=tuple(solved + text for text in c.contexts)) for c in choices]
    return ChoiceSet(task=task, choices=tuple(choices), settings={"shots": shots} if shots else {})


def _solved(choice: Choice) -> str:
    """Returns a question with its right answer, and an empty line."""
    return f"{choice.contexts[choice.right]}{choice.continuations[choice.right]}\n\n"


def piqa(record: Record) -> Choice:
    """Reads {"goal", "sol1", "sol2", "label"}, labels from 0.

    Source: Bisk et al. 2020, PIQA.
    """
    if "query" in record.fields:
        return _asked(record, record.text("query"), record.texts("choices"), "gold")
    return _asked(record, record.text("goal"), (record.text("sol1"), record.text("sol2")), "label")


def arc(record: Record) -> Choice:
    """Reads {"question", "choices", "answerKey"}, the question flat or with its choices inside.

    Source: Clark et al. 2018, Think you have Solved Question Answering?
    """
    if "query" in record.fields:
        return _asked(record, record.text("query"), record.texts("choices"), "gold")
    stem, choices, right = _keyed(record)
    return _same_context(record, f"Question: {stem}\nAnswer:", choices, right)


def openbookqa(record: Record) -> Choice:
    """Reads {"question" or "question_stem", "choices", "answerKey"}; the choice completes the question.

    Source: Mihaylov et al. 2018, Can a Suit of Armor Conduct Electricity?
    """
    if "query" in record.fields:
        choices = record.texts("choices")
        return _same_context(record, record.text("query").strip(), choices, record.index("gold", len(choices)))
    return _same_context(record, *_keyed(record))


def winogrande(record: Record) -> Choice:
    """Reads {"sentence", "option1", "option2", "answer"}, answers from 1.

    The end of the sentence, behind the gap, is scored after each option in the gap.

    Raises:
      ValueError: a field is missing, or the sentence has not one gap; file and line are named.

    Source: Sakaguchi et al. 2019, WinoGrande; scored as in Trinh and Le 2018.
    """
    if "context_options" in record.fields:
        contexts = record.texts("context_options")
        rest, right = record.text("continuation").strip(), record.index("gold", len(contexts))
    else:
        sentence = record.text("sentence")
        if sentence.count("_") != 1:
            raise record.error(f'expected a "sentence" with one gap "_"; got {sentence.count("_")}')
        before, rest = (part.strip() for part in sentence.split("_"))
        contexts = tuple(f"{before} {record.text(name)}".strip() for name in ("option1", "option2"))
        right = record.index("answer" if "answer" in record.fields else "label", 2, first=1)
    if not rest:
        raise record.error("expected text behind the gap; got none")
    # A full stop stands right behind the gap, a word behind a space.
    continuation = rest if not rest[0].isalnum() else f" {rest}"
    return Choice(name=record.where, contexts=contexts, continuations=(continuation,) * len(contexts), right=right)


def hellaswag(record: Record) -> Choice:
    """Reads {"ctx_a", "ctx_b", "activity_label", "endings", "label"}; marks in brackets are dropped.

    White space is what lm-evaluation-harness leaves: an ending whose mark stood first keeps the space behind it, and
    all letters of `ctx_b` but the first are small.

    Source: Zellers et al. 2019, HellaSwag.
    """
    if "query" in record.fields:
        choices = record.texts("choices")
        return _same_context(record, record.text("query").strip(), choices, record.index("gold", len(choices)))
    endings = record.texts("endings")
    begun = record.text("ctx_b") if record.fields.get("ctx_b") else ""
    context = f"{record.text('activity_label')}: {record.text('ctx_a')} {begun.capitalize()}"
    cleaned = tuple(_clean(ending) for ending in endings)
    return _same_context(record, _clean(context), cleaned, record.index("label", len(endings)))


FORMATS: dict[str, Callable[[Record], Choice]] = {
    "piqa": piqa,
    "arc_easy": arc,
    "arc_challenge": arc,
    "openbookqa": openbookqa,
    "winogrande": winogrande,
    "hellaswag": hellaswag,
}


def _asked(record: Record, question: str, choices: tuple[str, ...], label: str) -> Choice:
    """Puts a question in words: some copies begin with "Question:" already."""
    stem = question.strip().removeprefix("Question:").strip()
    return _same_context(record, f"Question: {stem}\nAnswer:", choices, record.index(label, len(choices)))


def _same_context(record: Record, context: str, choices: tuple[str, ...], right: int) -> Choice:
    if not context.strip() or not all(choice.strip() for choice in choices):
        raise record.error("expected a question and choices that are not empty")
    return Choice(
        name=record.where,
        contexts=(context,) * len(choices),
        continuations=tuple(f" {choice}" for choice in choices),
        right=right,
    )


def _keyed(record: Record) -> tuple[str, tuple[str, ...], int]:
    """Returns question, choices and the index of the one whose label is `answerKey`."""
    question = record.fields.get("question")
    inner = Record(record.where, question) if isinstance(question, dict) else record
    name = next((n for n in ("stem", "question_stem", "question") if n in inner.fields), "question")
    stem, listed = inner.text(name).strip(), inner.fields.get("choices")
    if isinstance(listed, list) and all(isinstance(c, dict) for c in listed):
        # One object a choice; the hub keeps a list of texts and a list of labels.
        listed = {key: [c.get(key) for c in listed] for key in ("text", "label")}
    if not isinstance(listed, dict):
        raise record.error('expected "choices" with text and label each; got none')
    choices = Record(record.where, listed).texts("text")
    labels, key = [str(x) for x in listed.get("label") or ()], str(record.fields.get("answerKey"))
    if len(labels) != len(choices) or key not in labels:
        raise record.error(f'expected an "answerKey" among the labels {", ".join(labels) or "(none)"}; got {key}')
    return stem, choices, labels.index(key)


def _clean(text: str) -> str:
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")
