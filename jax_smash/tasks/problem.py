"""An arithmetic problem with its solution."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A question about numbers, the steps that solve it, and the result."""

    question: str
    steps: str
    result: int

    @property
    def solution(self) -> str:
        return f"{self.steps} So the answer is {self.result}"
