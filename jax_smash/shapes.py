"""Lengths fall in buckets, so that a second call of another length compiles nothing."""

from collections.abc import Sequence


def round_up(n: int, multiple: int) -> int:
    """Returns the least multiple of `multiple` that is at least `n`."""
    return -(-n // multiple) * multiple


def bucket(n: int, *, least: int = 16) -> int:
    """Returns the bucket that a length falls in: `least`, then powers of two and the middles between them.

    Padding is less than a third of the bucket once past `least`. `least` must be a power of two, at least 2.
    """
    size = least
    while size < n:
        if size + size // 2 >= n:
            return size + size // 2
        size *= 2
    return size


def rows_for(prompts: int, *, most: int) -> int:
    """Returns the rows of a batch of prompts: the least power of two that holds them, at most `most`."""
    return min(1 << (prompts - 1).bit_length(), most)


def chunks(length: int, chunk: int) -> Sequence[int]:
    """Splits a prompt into forwards: whole chunks of `chunk` tokens, then one bucket that holds the rest.

    Returns:
      The padded length of each forward; their sum is at least `length`, and at least one forward is made.
    """
    whole, rest = divmod(length, chunk)
    if rest or not whole:
        return [chunk] * whole + [min(bucket(rest), chunk)]
    return [chunk] * whole
