"""What pictures of several programs share."""

MARKS = "os^vDP*X"


def mark(i: int) -> str:
    """Returns the mark of a picture's line i, by which it is told apart without colours."""
    return MARKS[i % len(MARKS)]
