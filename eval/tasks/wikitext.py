"""WikiText's articles, whose words stand apart by spaces, as text that is scored by perplexity a token and a word.

Source: Merity et al. 2016, Pointer Sentinel Mixture Models.
"""

import re
from pathlib import Path

from eval.tasks.documents import Document, DocumentSet, read_text
from eval.tasks.records import front

_TITLE = re.compile(r"^ ?= (?!=).* = *$", re.MULTILINE)
_REPLACED = (
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_ENCLOSED = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_REPLACED_LAST = (
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


def wikitext_set(source: str, *, count: int | None, stride: int | None = None) -> DocumentSet:
    """Returns the articles of a WikiText file, cut where a title ` = … = ` stands.

    What is scored is the text without WikiText's spaces; the words and bytes that its nats are divided by are those of
    the file, as lm-evaluation-harness counts them. A file in which rare words are `<unk>` gives other figures than one
    in which they stand.

    Args:
      source: a text file.
      count: articles, from the front; None takes all.
      stride: as in `document_set`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not UTF-8 or has no title, or there are fewer articles than `count`.
    """
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"data file does not exist: {path}")
    text = read_text(path)
    begins = [found.start() for found in _TITLE.finditer(text)]
    if not begins:
        raise ValueError(f'{path} must have articles that begin with a title " = … = "; got none')
    articles = [text[a:b] for a, b in zip(begins, [*begins[1:], None], strict=True)]
    documents = tuple(
        Document(name=f"{path}, article {number}", text=joined(article), original=article)
        for number, article in enumerate(front(articles, count, source), start=1)
    )
    return DocumentSet(task="wikitext", documents=documents, stride=stride)


def joined(text: str) -> str:
    """Returns a text without the spaces that WikiText puts around marks; it is what lm-evaluation-harness scores."""
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for opened, closed in _ENCLOSED:
        a, b = re.escape(opened), re.escape(closed)
        text = re.sub(rf"{a}\s*([^{b}]*?)\s*{b}", rf"{opened}\1{closed}", text)
    for before, after in _REPLACED_LAST:
        text = text.replace(before, after)
    return text
