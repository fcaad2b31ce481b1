"""ROUGE-L: how much of a summary another one says in the same order."""

import re


def rouge_l(answer: str, continuation: str) -> float:
    """Returns the F1 of the words that two texts share in order, 0 … 1; 0 where either has no word.

    F1 = 2 · LCS / (words of the one + words of the other),  LCS the length of their longest common subsequence

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3.
    Differs: words are lower-cased and not stemmed; the whole text counts as one sentence.
    """
    expected, found = (re.findall(r"\w+", text.lower()) for text in (answer, continuation))
    if not expected or not found:
        return 0.0
    lengths = [0] * (len(found) + 1)  # Of the words so far, with each beginning of the continuation.
    for word in expected:
        before = lengths
        lengths = [0]
        for i, other in enumerate(found):
            lengths.append(before[i] + 1 if word == other else max(before[i + 1], lengths[i]))
    return 2 * lengths[-1] / (len(expected) + len(found))
