"""What the user is told when something goes wrong: one line."""

import os
import sys


class UsageError(ValueError):
    """Options that are out of range, or do not go together."""


def debugging() -> bool:
    """Returns whether the user asked for tracebacks."""
    return os.environ.get("JAX_SMASH_DEBUG", "") not in ("", "0")


def report(text: str) -> None:
    """Writes one error line to stderr."""
    print(f"jax-smash: error: {' '.join(text.split())}", file=sys.stderr, flush=True)


def ended(text: str, status: int) -> int:
    """Tells an error and returns the status to leave with; where this is one of several processes, ends them all."""
    if text:
        report(text)
    hosts = sys.modules.get("jax_smash.hosts")  # Not imported, there are no others.
    if hosts is not None and hosts.joined():
        hosts.fail(text, status, told=True)
    return status


def describe(error: BaseException) -> str:
    """Returns what an exception says, followed by its notes."""
    text = _loss(error) or _message(platform_problem(error) or error)
    return "; ".join([text, *getattr(error, "__notes__", [])])


def platform_problem(error: BaseException) -> OSError | None:
    """Returns what is wrong with the platform that JAX_PLATFORMS names, where an error comes from that."""
    # JAX raises either, the latter without a word.
    if not isinstance(error, RuntimeError | AssertionError) or not os.environ.get("JAX_PLATFORMS"):
        return None
    from jax_smash.platform import check_platforms

    try:
        check_platforms()
    except OSError as problem:
        return problem
    return None


def _loss(error: BaseException) -> str | None:
    """Returns what is told where an error is that another process of this program has gone."""
    hosts = sys.modules.get("jax_smash.hosts")  # Not imported, there are no others.
    return None if hosts is None else hosts.loss_of_host(error)


def _message(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    out_of_memory = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in text
    if isinstance(error, MemoryError) or out_of_memory:
        first = text.splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")[:300] if text else "out of memory"
        return f"{first}; a smaller --batch-size, --num-samples or --max-new-tokens, or --dtype bfloat16, needs less"
    if isinstance(error, OSError) and error.strerror:
        # The number in "[Errno 28] …" says nothing to a user; the file does.
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    if isinstance(error, ValueError | TypeError | OSError | ImportError) and text:
        return text
    return f"{type(error).__name__}: {text or 'no message'} (JAX_SMASH_DEBUG=1 shows where)"
