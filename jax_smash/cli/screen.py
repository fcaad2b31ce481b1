"""What the user sees of a generation: text on stdout, everything else on stderr."""

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from jax_smash.serve.turn import Completion


class Screen:
    """Shows text as it is made where one row decodes at a time, else a progress bar and each text when it is whole.

    Only text goes to stdout, so that it can be piped. Bars and spinners are drawn only where stderr is a terminal.
    """

    def __init__(
        self, *, prompts: int, samples: int, stream: bool, keep_going: bool, done: int = 0, quiet: bool = False
    ):
        """Draws nothing yet.

        Args:
          prompts: how many.
          samples: continuations of each.
          stream: show pieces of text as they come.
          keep_going: when nobody reads stdout any more, go on without it.
          done: texts that an earlier run made.
          quiet: show nothing, for another process shows it.
        """
        self.stream, self.samples, self.total, self._done = stream, samples, prompts * samples, done
        self._keep_going, self._open, self._started, self._ends_line = keep_going, True, -1, True
        self._tokens = 0
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._status: Any = None
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # A terminal of another encoding shows "?" and goes on.

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *error: Any) -> None:
        self._erase()
        if not self._ends_line and self._open:
            with contextlib.suppress(OSError):
                self._write("\n")

    def waiting(self, what: str) -> None:
        """Shows what is being waited for, until there is something better to show."""
        self._erase()
        if self._console.is_terminal:
            self._status = self._console.status(what)
            self._status.start()

    def progress(self) -> None:
        """Shows how many texts and tokens are made, from now on."""
        if self.stream or self.total == 1:
            return
        self._erase()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,  # The text belongs on stdout, not above the bar on stderr.
            disable=not self._console.is_terminal,
        )
        self._bar.add_task("texts", total=self.total, completed=self._done, tokens=0)
        self._bar.start()

    def tokens(self, count: int) -> None:
        """Counts new tokens."""
        self._tokens += count
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], tokens=self._tokens)

    def text(self, number: int, piece: str) -> None:
        """Shows a piece of the text of a completion."""
        if not self._ends_line and number != self._started:
            self._write("\n")
        self._head(number)
        self._write(piece)

    def completion(self, number: int, completion: "Completion") -> None:
        """Shows a finished completion, or ends its line where its pieces were shown."""
        if self._bar is not None:
            self._bar.stop()  # Both may be one terminal: the bar makes room for the text.
        self._head(number)
        if not self.stream:
            self._write(completion.text)
        self._write("\n")
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
            if number + 1 < self.total:
                self._bar.start()

    def note(self, line: str) -> None:
        """Shows a line on stderr, in place of the bar or spinner."""
        self._erase()
        self._console.print(line, style="dim", markup=False)

    def _head(self, number: int) -> None:
        """Says whose text follows, where there are several."""
        self._erase(bar=False)
        if number == self._started:
            return
        self._started = number
        if self.total > 1:
            prompt, sample = divmod(number, self.samples)
            self._write(f"== prompt {prompt}{f', sample {sample}' if self.samples > 1 else ''} ==\n")

    def _erase(self, *, bar: bool = True) -> None:
        """Takes spinner and bar away, or the spinner alone."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if bar and self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _write(self, text: str) -> None:
        if not self._open or sys.stdout is None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self._open = False
            abandon_stdout()
            if isinstance(error, BrokenPipeError):
                if self._keep_going:
                    return
                raise
            raise OSError(error.errno, error.strerror, "standard output") from error
        if text:
            self._ends_line = text.endswith("\n")


class Printed(Console):
    """A console on stdout whose errors say so. Where nobody reads, rich's own would end the program."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints; raises OSError where that cannot be written."""
        try:
            super().print(*objects, **options)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error

    def on_broken_pipe(self) -> None:
        """Raises what is being handled."""
        raise


def abandon_stdout() -> None:
    """Points stdout nowhere, since Python would try once more to write what is left, and complain."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
