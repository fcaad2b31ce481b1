"""Options that every training program has."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypedDict

import jax
from jax.sharding import Mesh

from jax_smash.cli.compilation_cache import use_compilation_cache
from jax_smash.cli.program_options import check_programs, programs_folder
from jax_smash.config import ModelConfig
from jax_smash.hosts import START_TIMEOUT, HostOptions, join_hosts
from jax_smash.sharding import MeshShape, make_mesh
from train.parts.part import Part
from train.run.loop import Loop
from train.run.program import check_sources, make_devices


class JoinOptions(TypedDict, total=False):
    """How a program that is no training joins other hosts.

    Attributes:
      coordinator: HOST:PORT of process 0, where several hosts run together and JAX does not find them by itself.
      num_processes: of such a run; 1 runs on this host alone.
      process_id: of this one, from 0.
      start_timeout: seconds to wait for all processes to start; by default 300.
    """

    coordinator: str | None
    num_processes: int | None
    process_id: int | None
    start_timeout: int


class RunOptions(TypedDict, total=False):
    """How a run goes, beside what it trains.

    Attributes:
      until: step to stop after, with the learning rate that the whole run has there.
      mesh: devices, as in `fsdp=4,tp=2`, of which a CPU makes as many as it needs; or a preset, which divides all that
        there are: `dp`, `fsdp`, `tp` or `fsdp+tp`. By default each works on a share of the rows.
      programs: folder for compiled programs in place of the user's cache directory, by device and versions; `beside` is
        the folder `programs` in `output`.
      devices: on a CPU, how many virtual devices it makes; one a core trains fastest. Of several hosts each makes so
        many.
      coordinator: HOST:PORT of process 0, where several hosts train together and JAX does not find them by itself.
      num_processes: of such a run; 1 runs on this host alone.
      process_id: of this one, from 0.
      start_timeout: seconds to wait for all processes to start; by default 300.
      log_every: steps between lines of `metrics.jsonl`; by default 10.
      evaluate_every: steps between evaluations on the held-out rows; by default 200.
      save_every: steps between checkpoints; by default 100.
      held_out_rows: rows of each source that an evaluation reads at most, 0 for all; by default 8.
      sources: Markdown on the text and its licences, for the card.
      resume: go on from the newest checkpoint in `output`.
    """

    until: int | None
    mesh: str | None
    programs: str | None
    devices: int | None
    coordinator: str | None
    num_processes: int | None
    process_id: int | None
    start_timeout: int
    log_every: int
    evaluate_every: int
    save_every: int
    held_out_rows: int
    sources: Path | None
    resume: bool


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """`RunOptions` with their defaults."""

    until: int | None = None
    mesh: str | None = None
    programs: str | None = None
    devices: int | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    start_timeout: int = START_TIMEOUT
    log_every: int = 10
    evaluate_every: int = 200
    save_every: int = 100
    held_out_rows: int = 8
    sources: Path | None = None
    resume: bool = False

    def begin(self) -> None:
        """Joins the other hosts and makes the devices of a CPU, before JAX is used; checks the files and folders."""
        check_sources(self.sources)
        if self.programs is not None:
            check_programs(self.programs)
        hosts = HostOptions(self.coordinator, self.num_processes, self.process_id, self.start_timeout)
        make_devices(self.devices, self.mesh, processes=join_hosts(hosts, heeds_sigterm=True))

    def shared(self) -> dict[str, Any]:
        """Returns the options that all hosts must have alike, by their names on a command line."""
        own = ("coordinator", "process_id", "start_timeout", "programs")
        return {f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if name not in own}

    def loop(self, part: Part) -> Loop:
        """Returns how long a part's run is, and when it reports.

        Raises:
          ValueError: an option is out of range, or the part could not be resumed.
        """
        settings = part.settings
        loop = Loop(
            settings.steps,
            log_every=self.log_every,
            evaluate_every=self.evaluate_every,
            save_every=self.save_every,
            accumulate=settings.accumulate,
            saved_by=part.saved_by,
            until=self.until,
            token_flops=part.token_flops,
        )
        part.check(loop)
        return loop

    def begin_programs(self, output: Path) -> None:
        """Has compiled programs kept where they are to be; before anything is compiled, and behind what is checked."""
        if self.programs is not None:
            use_compilation_cache(programs=programs_folder(self.programs, lambda: output))

    def mesh_or_default(self, config: ModelConfig) -> Mesh:
        """Returns the mesh that was asked for a model, or one that gives each device a share of the rows."""
        return make_mesh(self.mesh or MeshShape(data=jax.device_count()), kv_heads=config.num_kv_heads)
