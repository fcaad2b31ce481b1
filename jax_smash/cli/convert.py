"""`jax-smash convert`: a checkpoint into another layout."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.options import DtypeName

READINGS: dict[str, Literal["inputs", "outputs"]] = {"vllm": "inputs", "sglang": "outputs"}
"""What ids of layers mean in a published EAGLE-3 drafter, by who loads it."""


PUBLISHED = {
    "eagle.json": ("vllm", "sglang"),
    "eagle1.json": ("vllm", "sglang"),
    "medusa.json": ("vllm", "authors"),
    "chimera.json": (),
    "dflash.json": (),
}
"""Layouts that a drafter of ours goes to, by what its description is called."""


@dataclasses.dataclass(frozen=True)
class Convert:
    """Write a checkpoint in another layout or dtype."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A model's name (tiny, smollm2), a directory, a .gguf file, or owner/model on the Hugging Face hub. With
    another --to than huggingface and orbax the directory of a drafter."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """The directory to make; it must not exist."""
    to: Literal["huggingface", "orbax", "eagle", "medusa", "vllm", "sglang", "authors"] = "huggingface"
    """The layout to write. For a model: huggingface or orbax. For a published drafter: ours, eagle (EAGLE-3 or EAGLE-1)
    or medusa. For a drafter of ours: a published one, vllm (EAGLE or Medusa), sglang (EAGLE) or authors (Medusa)."""
    base: str | None = None
    """The model that the drafter is for. Needed with --to eagle, medusa and authors, for an EAGLE-1 drafter, and for a
    drafter that uses the output head of that model."""
    layer_ids: Literal["told", "inputs", "outputs"] = "told"
    """With --to eagle: what a published drafter's ids of layers mean, where they do not tell it themselves."""
    dtype: DtypeName = "auto"
    """What the weights are rounded to; auto keeps them as they are."""

    def run(self) -> None:
        """Converts, with a progress bar where stderr is a terminal.

        Raises:
          UsageError: options do not go together.
          FileExistsError, FileNotFoundError, OSError, ValueError: as `jax_smash.convert` says.
        """
        from rich.console import Console
        from rich.progress import Progress

        from jax_smash.checkpoints.convert import convert
        from jax_smash.checkpoints.directory import check_new
        from jax_smash.loading import find
        from jax_smash.platform import skip_absent_tpu

        skip_absent_tpu()
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        if self.to == "eagle" and self.base is None:
            raise UsageError("--to eagle needs --base MODEL, the model that the drafter is for")
        if self.to != "eagle" and self.layer_ids != "told":
            raise UsageError(f"--layer-ids goes with --to eagle; got --to {self.to}")
        if self.to in ("medusa", "authors") and self.base is None:
            raise UsageError(f"--to {self.to} needs --base MODEL, the model that the heads are for")
        if self.to not in ("huggingface", "orbax"):
            check_new(self.target)  # Before a large model is read.
        self._check_layout()
        if self.to in ("vllm", "sglang") and self._of_eagle1():
            console.print(f"wrote {self._published_eagle1()}")
            return
        if self.to in ("huggingface", "orbax") and self.base is not None:
            raise UsageError(f"--base goes with the drafters of a model; got --to {self.to}")
        if self.to not in ("huggingface", "orbax"):
            console.print(f"wrote {self._heads() if self._of_medusa() else self._drafter()}")
            return
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

    def _check_layout(self) -> None:
        """Refuses a published layout that the source's kind of drafter does not go to."""
        from jax_smash.checkpoints.contents import DRAFTERS

        found = [file for file in DRAFTERS if (Path(self.source).expanduser() / file).is_file()]
        if self.to not in ("vllm", "sglang", "authors") or any(self.to in PUBLISHED[file] for file in found):
            return
        for file in found:
            layouts = " or ".join(f"--to {layout}" for layout in PUBLISHED[file]) or "no published layout"
            raise UsageError(
                f"{self.source} holds {DRAFTERS[file]} ({file}), which goes to {layouts}; got --to {self.to}"
            )

    def _of_medusa(self) -> bool:
        from jax_smash.checkpoints.medusa import CONFIG

        return self.to in ("medusa", "authors") or (self.to == "vllm" and (Path(self.source) / CONFIG).is_file())

    def _of_eagle1(self) -> bool:
        from jax_smash.checkpoints.eagle_drafters import is_eagle1

        return is_eagle1(self.source)

    def _published_eagle1(self) -> Path:
        """Writes an EAGLE-1 drafter in a published layout and returns its folder."""
        from jax_smash.checkpoints.configuration import checkpoint_config
        from jax_smash.checkpoints.eagle1 import load_eagle1
        from jax_smash.checkpoints.eagle1_layout import export_eagle1
        from jax_smash.loading import find, stored_vectors

        if self.base is None:
            raise UsageError(f"--to {self.to} needs --base MODEL, the model that the EAGLE-1 drafter is for")
        base = find(self.base)
        made = load_eagle1(self.source, dtype=None if self.dtype == "auto" else self.dtype)
        self._check_base(made)
        loader: Literal["vllm", "sglang"] = "vllm" if self.to == "vllm" else "sglang"
        export_eagle1(self.target, made, checkpoint_config(base), loader, embedding=lambda: stored_vectors(base))
        return self.target

    def _heads(self) -> Path:
        """Writes Medusa's heads and returns their folder."""
        from jax_smash.checkpoints.configuration import checkpoint_config
        from jax_smash.checkpoints.directory import new_directory
        from jax_smash.checkpoints.medusa import load_medusa, save_medusa
        from jax_smash.checkpoints.medusa_layout import Layout, export_medusa, import_medusa
        from jax_smash.loading import find, stored_vectors

        dtype = None if self.dtype == "auto" else self.dtype
        base = None if self.base is None else find(self.base)
        rows = None if base is None else lambda: stored_vectors(base, "head")
        if self.to == "medusa" and base is not None:
            made = import_medusa(self.source, checkpoint_config(base), rows=rows, dtype=dtype)
            self._check_base(made)
            with new_directory(self.target, 0) as work:
                save_medusa(work, made.config, made.params, **_marks(made))
        else:
            made = load_medusa(self.source, dtype=dtype)
            self._check_base(made)
            layout: Layout = "vllm" if self.to == "vllm" else "authors"
            export_medusa(self.target, made, layout, rows=rows, base=self.base or "")
        return self.target

    def _drafter(self) -> Path:
        """Writes an EAGLE-3 drafter, or ours of a published EAGLE-1 drafter, and returns its folder."""
        from jax_smash.checkpoints.configuration import checkpoint_config
        from jax_smash.checkpoints.directory import new_directory
        from jax_smash.checkpoints.eagle import load_eagle, save_eagle
        from jax_smash.checkpoints.eagle1 import save_eagle1
        from jax_smash.checkpoints.eagle1_layout import import_eagle1, is_published_eagle1
        from jax_smash.checkpoints.eagle_layout import export_eagle, import_eagle
        from jax_smash.loading import find, stored_vectors

        dtype = None if self.dtype == "auto" else self.dtype
        if self.to != "eagle":
            made, layer_ids = load_eagle(self.source, dtype=dtype), READINGS[self.to]
            self._check_base(made)
            rows = None if self.base is None else functools.partial(stored_vectors, find(self.base), "head")
            export_eagle(self.target, made, layer_ids=layer_ids, rows=rows)
            return self.target
        base = find(str(self.base))
        if is_published_eagle1(self.source):
            if self.layer_ids != "told":
                raise UsageError("--layer-ids goes with EAGLE-3; the drafter is EAGLE-1's, which reads no layers")
            one = import_eagle1(
                self.source, checkpoint_config(base), embedding=lambda: stored_vectors(base), dtype=dtype
            )
            self._check_base(one)
            with new_directory(self.target, 0) as work:
                save_eagle1(work, one.config, one.params, **_marks(one))
            return self.target
        made = import_eagle(
            self.source,
            checkpoint_config(base),
            layer_ids=None if self.layer_ids == "told" else self.layer_ids,
            embedding=lambda: stored_vectors(base),
            dtype=dtype,
        )
        self._check_base(made)
        with new_directory(self.target, 0) as work:
            save_eagle(work, made.config, made.params, **_marks(made))
        return self.target

    def _check_base(self, made: Any) -> None:
        """Refuses a base whose weights are not those that a drafter was trained for, before anything is written."""
        from jax_smash.loading import stored_base

        if self.base is None or not made.base_fingerprint:
            return
        if (found := stored_base(self.base)[1]()) != made.base_fingerprint:
            raise ValueError(
                f"the drafter in {self.source} was trained for a base whose weights have fingerprint "
                f"{made.base_fingerprint[:16]}…; those of {self.base} have {found[:16]}…"
            )


def _marks(made: Any) -> dict[str, Any]:
    """Returns what a drafter's files say of it beside its configuration."""
    return {"base_fingerprint": made.base_fingerprint, "trained_length": made.trained_length}
