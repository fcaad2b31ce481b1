"""Memory, traffic and modelled time of the decoding programs on a chip that is not at hand.

    python -m eval.compile --shape llama-3.1-8b --chip v6e:1x1 --batch-size 8 --slots 4096 --json memory.json
    python -m eval.compile --shape llama-3.2-1b --method recycling --tree recycling-80 --batch-size 8 --extrapolate
    python -m eval.compile --shape llama-3.1-8b --chip v5p:1x1x1 --slots 131072 --sparse quest --kv-budget 2048

The programs are compiled for the chip, down to its instructions, and nothing is allocated or run: a machine without the
chip and without the memory will do. Programs run on one device of the topology, or with `--mesh` on as many as it has;
then what the devices exchange is listed. Times are modelled: see `eval.chips.modelled` and `jax_smash.chips`.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from eval.chips.compile_tables import print_tables
from eval.chips.extrapolated import compiled_layers, extrapolated, repeat
from eval.chips.figures import program_figures, readable
from eval.chips.ideal import ideal
from eval.chips.kernel_calls import recorded
from eval.chips.tree_times import node_counts, tree_times
from eval.reports.options import Names, Numbers
from eval.reports.report import check_outputs, heading, run_program, write_json, write_whole
from eval.sparse.arms import policy_of
from jax_smash.checkpoints.configuration import shape_config
from jax_smash.chips import Chip, chip_of
from jax_smash.config import ModelConfig
from jax_smash.decode.programs import compile_lowered
from jax_smash.methods import INT8, REACH, DraftOptions, SmashOptions, check_draft, check_method, check_smash
from jax_smash.plan import prefill_chunk, tree_bytes
from jax_smash.planning.abstract import WITH_TRAINED, Abstract, AbstractModel, abstract, share_bytes
from jax_smash.planning.compiled import memory_figures
from jax_smash.planning.topology import check_chip, devices, memory_bytes
from jax_smash.platform import tracing_for
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import check_weights
from jax_smash.shapes import bucket
from jax_smash.sharding import add_virtual_devices, make_mesh, mesh_of, on_mesh
from jax_smash.sparse import named_policy

PROGRAMS = ("prefill", "start", "decode")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compiles prefill, start and decode for a chip and tells what they need.

    Attributes:
      shape: a preset's name (llama-3.2-1b, llama-3.1-8b, …) or a directory with a config.json.
      chip: a topology (v5e:1x1, v6e:1x1, tpu7x:2x2x1, …), or cpu for this machine.
      method: that decodes.
      tree: that it drafts; auto where the method has one of its own.
      draft_model: of method draft-model: a shape, or int8 for the target itself with int8 weights.
      drafter: kind of the trained drafter, of the usual sizes: of method eagle, eagle (EAGLE-3) or eagle1; of method
        hybrid any.
      smash_mode: of method hamburger.
      sparse: policy that chooses what a step reads of the cache, as in quest or quest:dense_layers=0. A predictor has
        the usual sizes for the shape, unless its folder is named.
      kv_budget: slots that it reads, or a share of the text as in 25%.
      page_size: consecutive slots that it chooses together.
      programs: which to compile, of prefill, start and decode.
      num_layers: keep only this many layers.
      extrapolate: compile models of 2 and 4 layers only, or of more where layers of several kinds repeat or a policy
        reads the first ones whole, and continue their figures in a straight line.
      batch_size: rows.
      slots: capacity of the cache a row.
      prefill_chunk: entries a row that one prefill reads; by default what a quarter of the chip's memory allows.
      max_new_tokens: of each row.
      sampled: rows sample, with top-k and top-p; else greedily.
      dtype: of the weights.
      weights: int8 holds matrices as 8-bit integers.
      mesh: devices of the topology to divide the model and its rows over, as in fsdp=2,tp=2, or a preset:
        dp, fsdp, tp or fsdp+tp.
      tree_sizes: also compile decode with trees of so many nodes, the root included, and compare their times.
      chips, batch_sizes: for which to compare them, in place of chip and batch_size alone.
      plot: picture of that comparison to write, a PNG file.
      json: file to write.
      overwrite: replace files that exist.
    """

    shape: str
    chip: str = "v5e:1x1"
    method: str = "ar"
    tree: str = "auto"
    draft_model: str | None = None
    drafter: str | None = None
    smash_mode: str | None = None
    sparse: str | None = None
    kv_budget: str | None = None
    page_size: int | None = None
    programs: Names = PROGRAMS
    num_layers: int | None = None
    extrapolate: bool = False
    batch_size: int = 1
    slots: int = 4096
    prefill_chunk: int | None = None
    max_new_tokens: int = 256
    sampled: bool = False
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    weights: Literal["plain", "int8"] = "plain"
    mesh: str | None = None
    tree_sizes: Numbers = ()
    chips: Names = ()
    batch_sizes: Numbers = ()
    plot: Path | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compiled.

        Raises:
          ValueError: an option is out of range or malformed, does not go with the method, or the chip is unknown.
          ImportError: the compiler for the chip is missing, or what draws pictures.
          FileExistsError, FileNotFoundError: an output file cannot be written.
        """
        for name in ("num_layers", "batch_size", "slots", "prefill_chunk", "max_new_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if unknown := [name for name in self.programs or ("",) if name not in PROGRAMS]:
            raise ValueError(f"programs must be of {', '.join(PROGRAMS)}; got {unknown[0]!r}")
        check_weights(self.weights)
        self._check_method()
        for chip in (self.chip, *self.chips):
            check_chip(chip)
        self._check_trees()
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)

    def _check_method(self) -> None:
        check_method(self.method)
        if self.drafter is not None and self.drafter not in (kinds := WITH_TRAINED.get(self.method, ())):
            some = f"drafter must be one of {', '.join(kinds)}" if kinds else "drafter is for a method that is trained"
            raise ValueError(f"{some}; got {self.drafter} of method {self.method}")
        # A hybrid takes the trees that its trained drafter's own method takes.
        own = {None: self.method, "eagle1": "eagle"}.get(self.drafter, self.drafter)
        check_draft(own, self.draft)
        check_smash(self.method, self.smash)
        if self.tree == "auto" and self.method in REACH:
            raise ValueError(f"tree auto of method {self.method} is sized for the device at hand: name a tree")
        if (self.draft_model is None) is (self.method == "draft-model"):
            raise ValueError(f"draft_model is for method draft-model, and it needs one; got method {self.method}")
        if (policy := self.policy) is not None:
            AbstractModel(self.config(), policy=policy).model()  # Refuses a policy that does not fit the shape.
        if self.extrapolate and self.num_layers is not None:
            raise ValueError(f"extrapolate chooses the layers itself; got num_layers {self.num_layers}")
        if self.extrapolate and (more := self.layers()[1]) > (layers := self.config().num_layers):
            raise ValueError(f"extrapolate compiles {more} layers, and {self.shape} has {layers}: compile it whole")

    def _check_trees(self) -> None:
        node_counts(self.tree_sizes)
        for name in ("chips", "batch_sizes", "plot"):
            if getattr(self, name) and not self.tree_sizes:
                raise ValueError(f"{name} is for a comparison of tree_sizes; got none")
        if self.tree_sizes and "cpu" in (self.chips or (self.chip,)):
            raise ValueError("tree_sizes compares modelled times, which there are for TPUs only; got chip cpu")

    @property
    def draft(self) -> DraftOptions:
        """Options of drafting."""
        return DraftOptions(tree=self.tree)

    @property
    def smash(self) -> SmashOptions:
        """Options of decoding with HAMburger."""
        return SmashOptions(mode=self.smash_mode)

    @property
    def policy(self) -> SparsePolicy | None:
        """The policy of the cache; None where all of it is read.

        Raises:
          ValueError: there is no such policy, or options of one are given without it.
        """
        if self.sparse is not None:
            return named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)
        for name in ("kv_budget", "page_size"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"{name} is for a policy of the cache (sparse), and there is none; got {value}")
        return None

    def layers(self) -> tuple[int, int]:
        """Returns the layers of the two models that figures are continued from."""
        config = self.config()
        kinds = [*zip(config.layer_kinds, config.rotated, strict=True)]
        alike = {"period": repeat(kinds), "layers": config.num_layers}
        if self.policy is None:
            return compiled_layers(**alike)
        policy = policy_of(AbstractModel(config, policy=self.policy).model())
        every = getattr(getattr(policy, "predictor", None), "every", 1)
        return compiled_layers(getattr(policy, "dense_layers", 0), every=every, **alike)

    def config(self) -> ModelConfig:
        """Returns the shape, with as many layers as are asked for.

        Raises:
          ValueError: there is no such shape, or it has fewer layers.
        """
        config = shape_config(self.shape)
        layers = self.num_layers or config.num_layers
        if layers > config.num_layers:
            raise ValueError(f"num_layers must be at most the shape's {config.num_layers}; got {layers}")
        return dataclasses.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])

    def chunk(self) -> int:
        """Returns how many entries a row one prefill reads."""
        if self.prefill_chunk is not None:
            return self.prefill_chunk
        memory = memory_bytes(self.chip)
        chunk = prefill_chunk(
            self.config(),
            batch=self.batch_size,
            slots=self.slots,
            dtype=jnp.dtype(self.dtype),
            budget=None if memory is None else memory // 4,
        )
        longest = None if self.policy is None else self.policy.longest_block
        return min(chunk, bucket(self.slots), longest or chunk)

    def sheet(self) -> Chip | None:
        """Returns what the data sheet says of one device; None for this machine."""
        return chip_of(self.chip, getattr(devices(self.chip)[0], "num_cores", None))

    def arguments(self) -> Abstract:
        """Returns the arguments of the programs, as shapes on the topology's first device or on the mesh."""
        there = devices(self.chip)
        where = (
            there[0] if self.mesh is None else make_mesh(self.mesh, devices=there, kv_heads=self.config().num_kv_heads)
        )
        drafter: Any = self.draft_model
        if drafter not in (None, INT8):
            drafter = shape_config(drafter)
        modules = self.method == "hamburger"
        model = AbstractModel(
            self.config(),
            drafter,
            jnp.dtype(self.dtype),
            self.weights,
            modules=modules,
            trained=self.drafter,
            policy=self.policy,
        )
        return abstract(
            model,
            where,
            batch=self.batch_size,
            slots=self.slots,
            chunk=self.chunk(),
            method=self.method,
            draft=self.draft,
            smash=self.smash,
            max_new_tokens=self.max_new_tokens,
            sampled=self.sampled,
        )


def measure(settings: Settings) -> dict[str, Any]:
    """Compiles the programs and returns the report without its heading.

    Raises:
      ValueError, ImportError, OSError: an option is wrong, or the compiler is missing.
      UnreadableProgramError: a program cannot be read with this version of jaxlib.
    """
    settings.check()
    add_virtual_devices(settings.mesh)
    with tracing_for(devices(settings.chip)[0].platform):
        return _measured(settings)


def _measured(settings: Settings) -> dict[str, Any]:
    arguments, config = settings.arguments(), settings.config()
    cache, sheet = arguments.cache, settings.sheet()
    return {
        "chip": {
            "topology": settings.chip,
            "kind": devices(settings.chip)[0].device_kind,
            "memory_bytes": memory_bytes(settings.chip),
            "data_sheet": None if sheet is None else dataclasses.asdict(sheet),
        },
        "model": {
            "name": settings.shape,
            "num_layers": config.num_layers,
            "compiled_layers": list(settings.layers()) if settings.extrapolate else [config.num_layers],
            "method": settings.method,
            "nodes": arguments.nodes,
            "weight_bytes": tree_bytes(arguments.params),
            "weight_bytes_a_device": share_bytes(arguments.params),
            "cache_bytes": tree_bytes((cache.keys, cache.values)),
            "cache_bytes_a_device": share_bytes((cache.keys, cache.values)),
            "prefill_chunk": settings.chunk(),
            "channel_bytes_a_device": share_bytes(arguments.chosen_by),
        },
        "rows": rows(settings),
    } | ({"tree_times": tree_times(settings, rows)} if settings.tree_sizes else {})


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Returns the figures of each program; `tree_sizes` is left aside."""
    config, arguments = settings.config(), settings.arguments()
    if not settings.extrapolate:
        return list(_rows(settings, arguments))
    alike = dataclasses.replace(settings, prefill_chunk=settings.chunk(), extrapolate=False)
    short = {n: dataclasses.replace(alike, num_layers=n) for n in settings.layers()}
    compiled = {n: list(_rows(each, each.arguments())) for n, each in short.items()}
    least = {name: ideal(name, config, arguments) for name in settings.programs}
    memory = memory_bytes(settings.chip)
    return extrapolated(compiled, config.num_layers, least, settings.sheet(), settings.weights, memory)


def _rows(settings: Settings, arguments: Abstract) -> Iterator[dict[str, Any]]:
    kind = devices(settings.chip)[0].device_kind
    for name in settings.programs:
        function, args = arguments.programs[name]
        began = time.perf_counter()
        try:
            with on_mesh(mesh_of(args)), recorded():
                compiled = compile_lowered(function.lower(*args), kind)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # The compiler gives up before there is a program to read.
            yield {"program": name, "fits": False, "why": " ".join(str(error).split())[:400]}
            continue
        seconds = time.perf_counter() - began
        program = readable(name, compiled, settings.chip)
        told = program_figures(name, program, arguments, settings.config(), settings.sheet())
        yield {"program": name, "fits": True} | memory_figures(compiled) | told | {"compile_s": seconds}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints tables and writes the report."""
    # The chip is compiled for, not looked for.
    jax.config.update("jax_platforms", "cpu")
    found = measure(settings)
    report = heading("eval.compile", arguments, dataclasses.asdict(settings)) | found
    print_tables(settings, found)
    if settings.plot is not None:
        from eval.chips.tree_times_plot import plot_tree_times

        title = f"{settings.shape}, modelled time of a step"
        write_whole(settings.plot, plot_tree_times(found["tree_times"], title=title))
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main, compilation_cache=False)
