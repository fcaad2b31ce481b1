"""`jax-smash convert`: a checkpoint into another layout."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jax_smash.cli.options import DtypeName


@dataclasses.dataclass(frozen=True)
class Convert:
    """Write a checkpoint in another layout or dtype."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A model's name (tiny, smollm2), a directory, a .gguf file, or owner/model on the Hugging Face hub."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """The directory to make; it must not exist."""
    to: Literal["huggingface", "orbax"] = "huggingface"
    """The layout to write."""
    dtype: DtypeName = "auto"
    """What the weights are rounded to; auto keeps them as they are."""

    def run(self) -> None:
        """Converts, with a progress bar where stderr is a terminal.

        Raises:
          FileExistsError, FileNotFoundError, OSError, ValueError: as `jax_smash.convert` says.
        """
        from rich.console import Console
        from rich.progress import Progress

        from jax_smash.checkpoints.convert import convert
        from jax_smash.loading import find
        from jax_smash.platform import skip_absent_tpu

        skip_absent_tpu()
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("reading", total=None)
            path = convert(
                find(self.source),
                self.target,
                to=self.to,
                dtype=None if self.dtype == "auto" else self.dtype,
                find=find,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        console.print(f"wrote {path}")
