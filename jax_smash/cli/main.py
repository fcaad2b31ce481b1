"""The program `jax-smash`: reads the command, runs it, and turns what goes wrong into one line and a status."""

import contextlib
import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

import jax_smash
from jax_smash.cli.convert import Convert
from jax_smash.cli.errors import UsageError, debugging, describe, ended, report
from jax_smash.cli.generate import Generate
from jax_smash.cli.info import Info
from jax_smash.cli.plan import Plan
from jax_smash.cli.screen import abandon_stdout
from jax_smash.cli.tune import Tune

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Exit statuses; the last two are what a shell shows for a program ended by SIGINT and SIGPIPE."""

Command = (
    Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Convert, tyro.conf.subcommand("convert")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
)


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      args: without the program's name; None takes the process's.

    Returns:
      The exit status: 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads the output.
    """
    # Tracing makes many objects and little garbage: the collector's default takes a tenth of the time to a first text.
    gc.set_threshold(100_000, 20, 20)
    status = 0
    try:
        status = _commanded(list(sys.argv[1:] if args is None else args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()
        return BROKEN_PIPE
    except OSError as error:
        abandon_stdout()
        return status or ended(f"standard output: {describe(error)}", FAILED)
    return status


def _commanded(arguments: list[str]) -> int:
    """Runs the command that the arguments ask for and returns the exit status.

    Raises:
      OSError: what it has printed cannot be written.
    """
    if arguments in (["--version"], ["-V"]):
        print(f"jax-smash {jax_smash.__version__}")
        return 0
    try:
        command = parse(arguments or ["--help"])
    except SystemExit as end:
        if not arguments:
            return WRONG_USAGE
        return end.code if isinstance(end.code, int) else WRONG_USAGE
    return run(command)


def parse(arguments: list[str]) -> Any:
    """Returns the command that the arguments ask for.

    Raises:
      SystemExit: help was asked for and printed, or the arguments are wrong, which one line on stderr says.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                Command,  # type: ignore[arg-type]
                prog="jax-smash",
                description="Faster language-model decoding in JAX.",
                args=arguments,
            )
    except SystemExit as end:
        if end.code:
            report(_unboxed(printed.getvalue()) + _hint(arguments, printed.getvalue()))
        raise


def run(command: Any) -> int:
    """Runs a command and returns its exit status. With JAX_SMASH_DEBUG=1 exceptions pass."""
    # Libraries speak up on stderr about what does not concern a user of this program.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # JAX would add a remark about its traceback to every exception.
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    try:
        command.run()
    except BrokenPipeError:
        return ended("", BROKEN_PIPE)
    except KeyboardInterrupt as error:
        return ended(describe(error), INTERRUPTED)
    except Exception as error:
        if debugging():
            raise
        return ended(describe(error), WRONG_USAGE if isinstance(error, UsageError) else FAILED)
    return 0


def _hint(arguments: list[str], said: str) -> str:
    """Returns what helps with words that belong to no option: a prompt, most likely."""
    found = re.search(r"Unrecognized options: *([^\s-])", said)
    return "; the text to continue belongs to --prompt" if found and arguments[0] == "generate" else ""


def _unboxed(text: str) -> str:
    """Returns the sentences of tyro's error box on one line, without the help it repeats."""
    lines = [line.strip(" │") for line in text.splitlines()]
    # Where the terminal has no such signs, lines are of hyphens, and the title stands above the first one.
    sections = re.split(r"(?m)^(?:[─╭╰]|---).*$", "\n".join(lines))
    if "╭" not in text:
        del sections[0]
    wanted = [s.split("\n") for s in sections if s.strip() and not s.strip().startswith(("For full", "Argument help"))]
    said = [" ".join(filter(None, part)) if i == 0 else " ".join(part[:3]) for i, part in enumerate(wanted[:2])]
    return " ".join(said) or "the arguments cannot be read"
