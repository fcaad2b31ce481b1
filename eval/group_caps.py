"""How much faster HAMburger can decode at most, by arithmetic: what a micro-step reads beside a forward of the base.

    python -m eval.group_caps --shapes llama-3.2-1b,llama-3.1-8b,llama-3.1-70b --micro-layers 1,4 --json caps.json

Where decoding waits for weights, a micro-step costs c forwards of the base, c being its share of their bytes, and
groups of r tokens decode at most r / (1 + (r − 1) · c) times as fast as plain decoding. Nothing is allocated or run:
any shape will do. `python -m eval.speed --group-lengths` measures the same on a device.
"""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from eval.reports.options import Names, Numbers
from eval.reports.report import check_outputs, heading, print_table, run_program, write_json, write_whole
from jax_smash.checkpoints.configuration import shape_config
from jax_smash.config import ModelConfig
from jax_smash.methods.hamburger import step_cost
from jax_smash.models.transformer import abstract_params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.micro_head import ROLE, int8_head, reduced_head
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import abstract_smasher

COLUMNS = ("shape", "micro_layers", "micro_head", "micro_step_cost")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Tells the largest speed-up of groups of each length.

    Attributes:
      shapes: presets (llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, …) or directories with a config.json.
      micro_layers: layers of the micro-step decoder.
      micro_heads: full, int8, or a number of tokens.
      group_lengths: tokens of a group.
      dtype: of the weights.
      json: file to write.
      plot: picture to write, a PNG.
      overwrite: replace files that exist.
    """

    shapes: Names = ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b")
    micro_layers: Numbers = (1, 4)
    micro_heads: Names = ("full", "int8", "16384")
    group_lengths: Numbers = (1, 2, 3, 4)
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    json: Path | None = None
    plot: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be computed.

        Raises:
          ValueError: an option is out of range or names nothing.
          FileExistsError, FileNotFoundError: a file cannot be written.
        """
        for name in ("shapes", "micro_layers", "micro_heads", "group_lengths"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one; got none")
        if (least := min(*self.micro_layers, *self.group_lengths)) < 1:
            raise ValueError(f"micro_layers and group_lengths must be at least 1; got {least}")
        for head in self.micro_heads:
            SmashOptions(micro_head=head).check()
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)


def caps(settings: Settings) -> list[dict[str, Any]]:
    """Returns a row a shape, number of layers and head, with the cap of each group length.

    Raises:
      ValueError: an option is wrong, or there is no such shape.
    """
    settings.check()
    configs = {shape: shape_config(shape) for shape in settings.shapes}
    for config in configs.values():
        for head in settings.micro_heads:
            SmashOptions(micro_head=head).check(vocab_size=config.vocab_size)
    rows = []
    for shape, config in configs.items():
        for layers in settings.micro_layers:
            for head in settings.micro_heads:
                cost = _cost(config, layers, head, dtype=jnp.dtype(settings.dtype))
                found = {f"cap_{r}": r / (1 + (r - 1) * cost) for r in settings.group_lengths}
                told = {"shape": shape, "micro_layers": layers, "micro_head": head}
                rows.append(told | {"micro_step_cost": cost} | found)
    return rows


def _cost(config: ModelConfig, layers: int, head: str, *, dtype: Any) -> float:
    """Returns what a micro-step reads, in forwards of the base."""
    graphdef, base = abstract_params(config, dtype=dtype)
    _, modules = abstract_smasher(config, SmashConfig.for_base(config, micro_layers=layers), dtype)
    params: dict[str, Any] = {"target": base, "smasher": modules}
    if head == "int8":
        params[ROLE] = jax.eval_shape(lambda p: int8_head(nnx.merge(graphdef, p)), base)
    elif head != "full":
        counts = np.zeros(config.vocab_size, np.int64)
        params[ROLE] = jax.eval_shape(lambda p: reduced_head(nnx.merge(graphdef, p), counts, int(head)), base)
    return step_cost(params)


def plot_caps(rows: Sequence[dict[str, Any]], group_lengths: Sequence[int]) -> bytes:
    """Draws the caps by group length, a line a row; returns a PNG file."""
    from matplotlib.figure import Figure  # matplotlib takes a second to import.

    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for row in rows:
        label = f"{row['shape']}, {row['micro_layers']} layers, head {row['micro_head']}"
        axis.plot(group_lengths, [row[f"cap_{r}"] for r in group_lengths], marker="o", label=label)
    axis.set_xlabel("tokens a group")
    axis.set_ylabel("times as fast as plain decoding, at most")
    axis.set_xticks(list(group_lengths))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Computes, prints a table and writes the files."""
    rows = caps(settings)
    report = heading("eval.group_caps", arguments, dataclasses.asdict(settings)) | {"rows": rows}
    lengths = [f"cap_{r}" for r in settings.group_lengths]
    print_table(f"{settings.dtype}: speed-up at most, by arithmetic", rows, [*COLUMNS, *lengths])
    if settings.plot is not None:
        write_whole(settings.plot, plot_caps(rows, settings.group_lengths))
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
