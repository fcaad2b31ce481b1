"""One question with its answer, as a document, as a chat and as a check of what a model wrote."""

import re
from dataclasses import dataclass

_CONCLUSION = re.compile(r"answer(?: is)?:?[\s*$]+(-?\d[\d,]*)", re.IGNORECASE)
_NUMBER_ALONE = re.compile(r"-?\d[\d,]*\.?")


@dataclass(frozen=True)
class Example:
    """A question that a text answers, and the answer.

    Attributes:
      task: a name in `TASKS`.
      prompt: all text before the answer; ends without white space.
      separator: what stands between prompt and answer: `" "` or `"\\n"`.
      answer: what must follow, worked steps included.
      rest: text after the answer that completes a training document.
      question: the user's turn of the chat form.
      final: where the answer works in steps, the number it must end in; empty elsewhere.
      shown: answers of other questions that stand in the prompt, in order.
    """

    task: str
    prompt: str
    separator: str
    answer: str
    rest: str = ""
    question: str = ""
    final: str = ""
    shown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the whole training document."""
        return f"{self.prompt}{self.separator}{self.answer}{self.rest}"

    @property
    def messages(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the example as a chat: the user's turn holds context and question, the assistant's the answer."""
        user = {"role": "user", "content": self.question or self.prompt}
        return user, {"role": "assistant", "content": self.answer}

    def is_correct(self, continuation: str) -> bool:
        """Says whether generated text begins with the answer, white space and case aside, and ends it at a word's end.

        With worked steps, only the first number said to be the answer counts ("So the answer is 72"), or a first line
        that is nothing but that number.
        """
        if self.final:
            found = _CONCLUSION.search(continuation)
            if found:
                return found[1].replace(",", "") == self.final
            first_line = continuation.strip().split("\n")[0].strip()
            alone = _NUMBER_ALONE.fullmatch(first_line) is not None
            return alone and first_line.rstrip(".").replace(",", "") == self.final
        written, answer = _normal(continuation), _normal(self.answer)
        return written.startswith(answer) and not written[len(answer) : len(answer) + 1].isalnum()


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()
