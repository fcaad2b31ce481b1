import pytest

from eval.tasks.rouge import rouge_l


@pytest.mark.parametrize(
    ("answer", "continuation", "f1"),
    [
        ("The cat sat.", "the CAT, sat", 1.0),
        ("the cat sat on the mat", "the dog sat on a mat", 2 * 4 / 12),  # the, sat, on, mat
        ("a b c d", "d c b a", 2 * 1 / 8),  # Order counts.
        ("a b", "x a y z b w", 2 * 2 / 8),  # Gaps do not.
        ("a", "b", 0.0),
        ("a", "…", 0.0),
    ],
)
def test_words_in_the_same_order_are_shared(answer, continuation, f1):
    assert rouge_l(answer, continuation) == pytest.approx(f1)
    assert rouge_l(continuation, answer) == pytest.approx(f1)
