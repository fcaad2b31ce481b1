"""`jax-smash plan`: what a model will take on devices that need not be at hand."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.options import MeshText, WeightsName, at_least
from jax_smash.cli.pictures import check_plot, write_picture
from jax_smash.cli.sparse_options import SparseFlags

if TYPE_CHECKING:
    from jax_smash.config import ModelConfig
    from jax_smash.planning.planner import Plan as Planned


def _flag(metavar: str, hint: str = "") -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tell the memory and the time that a model takes on devices, by arithmetic from its config.json alone."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A folder with a config.json, such a file, a model's name (tiny, smollm2), a .gguf file, or the name of a shape
    (llama-3.1-8b)."""
    device: Annotated[str, _flag("CHIP:AxB|GPUxN|cpu", "(default: v5e:1x1)")] = "v5e:1x1"
    """The devices: a slice of TPUs (v5e:4x4, v5p:4x4x4, v6e:8x8, tpu7x:2x2x1), GPUs of a machine (h100x8), or cpu."""
    mesh: MeshText = None
    """How the model and its rows are divided over all devices, as in data=2,tp=4. By default tp over all."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """What weights and cache are held in."""
    weights: WeightsName = "plain"
    """int8 holds matrices as 8-bit integers, plain holds them in --dtype."""
    batch_size: Annotated[int, _flag("N", "(default: 1)")] = 1
    """Rows that decode together, on all devices."""
    context: Annotated[int | None, tyro.conf.DisallowNone, _flag("S", "(default: 4096)")] = None
    """Slots of the cache a row, taken to be full; at most the model's context."""
    prompt: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "(default: the context)")] = None
    """Tokens of each prompt."""
    method: Annotated[str, _flag("NAME", "(default: ar)")] = "ar"
    """How it decodes; see --method of generate. Trained drafters are taken to have the usual sizes."""
    tree: Annotated[str, _flag("auto|chain-N|tree-N|NAME|FILE.json", "(default: auto)")] = "auto"
    """The tree that a step drafts; auto takes the one that pays most on these devices."""
    acceptance: Annotated[float | None, tyro.conf.DisallowNone, _flag("P", "(default: 0.4)")] = None
    """Probability that a drafted token is kept whose parent is, if it is the first choice; of later choices it falls.
    Under hamburger the probability that a group of tokens goes on."""
    draft_model: Annotated[str | None, tyro.conf.DisallowNone, _flag("MODEL|int8")] = None
    """What --method draft-model drafts with: a model as MODEL names it, or int8 for the model's own int8 copy."""
    sparse: tyro.conf.OmitArgPrefixes[SparseFlags] = dataclasses.field(default_factory=SparseFlags)
    most_ms: Annotated[float | None, tyro.conf.DisallowNone, _flag("MS")] = None
    """Milliseconds that a token may take with the best batch."""
    num_layers: Annotated[int | None, tyro.conf.DisallowNone, _flag("N")] = None
    """Keep only the first layers."""
    compile: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also compile the real programs for these devices, which takes seconds to minutes, and tell what they take."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print a JSON object instead of tables."""
    plot: Annotated[Path | None, tyro.conf.DisallowNone, _flag("FILE.png")] = None
    """Draw throughput, memory and gain into a picture."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --plot replace a file."""

    def run(self) -> None:
        """Checks what can be checked at once, then plans and prints to stdout.

        Raises:
          UsageError: an option is out of range, or does not go with another one.
          FileNotFoundError: there is no such model.
          ValueError: its configuration is damaged or not supported.
          MemoryError: a program that is compiled does not fit.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        self._check()
        plan = self.plan()
        from jax_smash.planning.report import report

        told = {"name": self.model} | report(plan, most_ms=self.most_ms)
        if self.compile:
            from jax_smash.planning.compiled import compile_plan

            told["compiled"] = compile_plan(plan)
        if self.plot is not None:
            self._draw(told)
        if self.json:
            print(json.dumps(told, indent=2, ensure_ascii=False))
            return
        from jax_smash.cli.plan_tables import print_plan

        print_plan(told)

    def plan(self) -> "Planned":
        """Returns the plan.

        Raises:
          UsageError, FileNotFoundError, ValueError: as `run`.
        """
        from jax_smash.planning.planner import Plan as Planned
        from jax_smash.planning.question import Question
        from jax_smash.planning.topology import parse_topology
        from jax_smash.sharding import check_mesh, parse_mesh

        try:
            topology = parse_topology(self.device)
            if self.mesh is not None:
                check_mesh(self.mesh)
        except ValueError as error:
            raise UsageError(str(error)) from error
        config = sizes(self.model, self.num_layers)
        named = {"devices": topology.devices, "kv_heads": config.num_kv_heads}
        mesh = None if self.mesh is None else parse_mesh(self.mesh, **named)
        draft = self.draft_model
        given = {} if self.acceptance is None else {"acceptance": self.acceptance}
        policy = self.sparse.policy()
        try:
            question = Question(
                config,
                topology,
                mesh,
                dtype=self.dtype,
                weights=self.weights,
                batch=self.batch_size,
                context=min(4096, config.max_positions) if self.context is None else self.context,
                prompt=self.prompt,
                method=self.method,
                tree=self.tree,
                draft_model=draft if draft in (None, "int8") else sizes(draft),
                policy=policy,
                **given,
            )
            return Planned(question)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _check(self) -> None:
        at_least("--batch-size", self.batch_size, 1)
        for name, value in (("--context", self.context), ("--prompt", self.prompt), ("--num-layers", self.num_layers)):
            if value is not None:
                at_least(name, value, 1)
        if self.most_ms is not None and self.most_ms <= 0:
            raise UsageError(f"--most-ms must be over 0; got {self.most_ms}")
        if self.plot is not None:
            check_plot(self.plot, overwrite=self.overwrite)
        elif self.overwrite:
            raise UsageError("--overwrite is about --plot; give it a file")

    def _draw(self, told: dict[str, Any]) -> None:
        from jax_smash.planning.plot import plot_plan

        assert self.plot is not None
        write_picture(self.plot, plot_plan(told, title=f"{self.model} on {self.device}, {self.method}"))


def sizes(name: str, num_layers: int | None = None) -> "ModelConfig":
    """Returns the sizes of a model: of a config.json or a folder with one, of a model by name, or of a shape.

    Args:
      name: as above.
      num_layers: keep only the first ones; None keeps all.

    Raises:
      FileNotFoundError: there is no such model.
      ValueError: its configuration is damaged or not supported, or it has fewer layers.
    """
    from jax_smash.checkpoints.configuration import checkpoint_config
    from jax_smash.checkpoints.huggingface import read_config_file
    from jax_smash.loading import find
    from jax_smash.models.families.presets import PRESETS, preset

    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        config = read_config_file(path)[0]
    elif name in PRESETS and not path.exists():
        config = preset(name)
    else:
        config = checkpoint_config(find(name))
    if num_layers is None:
        return config
    if num_layers > config.num_layers:
        raise UsageError(f"--num-layers must be at most the model's {config.num_layers}; got {num_layers}")
    return dataclasses.replace(config, num_layers=num_layers, layer_kinds=config.layer_kinds[:num_layers])
