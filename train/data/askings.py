"""Prompts made by rule of ordinary texts: what a reader may ask about a passage, or about what its heading names."""

from __future__ import annotations

import collections
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ABOUT_PASSAGES = (
    "Summarize the following text in a few sentences.\n\n{passage}",
    "Write a one-sentence summary of this text:\n\n{passage}",
    "What are the main points of this text?\n\n{passage}",
    "Read the text and explain it in simple words.\n\n{passage}",
    "{passage}\n\nWhat does this text say about {term}?",
    "Answer the question with the help of the text.\n\nText: {passage}\n\nQuestion: What is {term}?\n\nAnswer:",
    "Which facts does this text give?\n\n{passage}",
    "Give the following text a title, and say why it fits.\n\n{passage}",
)
"""Asked with a passage in the prompt."""

ABOUT_SENTENCES = (
    "Rewrite this sentence in simpler words: {sentence}",
    "Translate into French: {sentence}",
    "Translate into German: {sentence}",
    "Is the following statement true? Explain your answer. {sentence}",
    "Continue this text: {sentence}",
)
"""Asked with one sentence in the prompt."""

ABOUT_TERMS = (
    "What is {term}?",
    "Explain {term} to a student who has never heard of it.",
    "What should I know about {term}?",
    "Why is {term} important?",
    "Give three examples that have to do with {term}.",
    "Write a short essay about {term}.",
    "Write a short story in which {term} plays a part.",
    "Write a blog post about {term}.",
    "What are the advantages and disadvantages of {term}?",
    "How did {term} come about?",
    "Compare {term} and {other}.",
    "You are a teacher. Answer a student's question: what do {term} and {other} have in common?",
    "Write a poem about {term}.",
    "List five facts about {term}.",
)
"""Asked about what a heading names, without a text."""

SHARES = {ABOUT_TERMS: 0.5, ABOUT_PASSAGES: 0.35, ABOUT_SENTENCES: 0.15}
"""Of all prompts, how many are of each kind."""

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
_TERM_WORDS = 6
_TERM_SECTIONS = 2
_SENTENCE_LETTERS = (40, 240)


class Section(NamedTuple):
    """What stands below one heading.

    Attributes:
      term: that the heading names.
      paragraphs: of the text.
    """

    term: str
    paragraphs: tuple[str, ...]


def sections(text: str) -> Iterator[Section]:
    """Yields the sections of a text whose headings are lines that begin with `#`; what stands before the first is none.

    Left out are headings of more than six words, items of lists, and sections without a paragraph.
    """
    pieces = _HEADING.split(text)
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        term = heading.strip().rstrip(".:")
        paragraphs = tuple(p.strip() for p in _PARAGRAPH.split(body) if p.strip()[:1].isalnum())
        if paragraphs and len(term.split()) <= _TERM_WORDS and term[:1].isalnum():
            yield Section(term, paragraphs)


def passage_of(section: Section, first: int, letters: int) -> str:
    """Returns whole paragraphs of a section from one of them on, at most so many characters; the first may be cut."""
    found = section.paragraphs[first][:letters]
    for paragraph in section.paragraphs[first + 1 :]:
        if len(found) + 2 + len(paragraph) > letters:
            break
        found += f"\n\n{paragraph}"
    return found


def askings(found: Sequence[Section], count: int, *, letters: int, seed: int) -> list[str]:
    """Returns different prompts about sections of texts, drawn by rule.

    Headings that stand over more than two sections, such as "Summary", name nothing to ask about.

    Args:
      found: the sections.
      count: of prompts.
      letters: characters of a passage at most; the lengths drawn are between a quarter of it and all.
      seed: of the draws.

    Raises:
      ValueError: there are too few sections for so many prompts.
    """
    often = collections.Counter(section.term for section in found)
    found = [section for section in found if often[section.term] <= _TERM_SECTIONS]
    if not found:
        raise ValueError("texts must have headings, lines that begin with `#`, with paragraphs below them; got none")
    draw, kinds = random.Random(seed), list(SHARES)
    prompts: dict[str, None] = {}
    for _ in range(20 * count):
        if len(prompts) == count:
            return list(prompts)
        section, other = draw.choice(found), draw.choice(found)
        (kind,) = draw.choices(kinds, weights=list(SHARES.values()))
        first = draw.randrange(len(section.paragraphs))
        passage = passage_of(section, first, draw.randint(letters // 4, letters))
        sentence = next((s for s in _SENTENCE.split(passage) if _fits(s)), "")
        if kind is ABOUT_SENTENCES and not sentence:
            continue
        form = draw.choice(kind)
        prompts[form.format(term=section.term, other=other.term, passage=passage, sentence=sentence)] = None
    raise ValueError(f"texts must have sections enough for {count} different prompts; {len(found)} gave {len(prompts)}")


def _fits(sentence: str) -> bool:
    least, most = _SENTENCE_LETTERS
    return least <= len(sentence) <= most and "\n" not in sentence
