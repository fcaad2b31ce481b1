"""Options of a command that several hosts run together: `--coordinator HOST:PORT --num-processes N --process-id I`."""

import dataclasses
from typing import Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError


def _flag(metavar: str, hint: str | None = None) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclasses.dataclass(frozen=True)
class HostFlags:
    """Several hosts that run this command together, each with its devices. TPU pods and jobs of SLURM, Open MPI or
    Kubernetes are found without any of these."""

    coordinator: Annotated[str | None, tyro.conf.DisallowNone, _flag("HOST:PORT", "")] = None
    """Where process 0 runs, and a free port there."""
    num_processes: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "")] = None
    """Processes in all; 1 runs on this host alone."""
    process_id: Annotated[int | None, tyro.conf.DisallowNone, _flag("I", "")] = None
    """Which of them this one is, from 0."""
    start_timeout: Annotated[int, _flag("SECONDS")] = 300
    """How long to wait for all of them to start."""

    def join(self) -> int:
        """Joins the other hosts where there are some, before JAX takes its devices; returns how many processes run.

        Raises:
          UsageError: options do not go together, or one is out of range.
          ValueError, OSError: as `jax_smash.hosts.join_hosts` says.
        """
        from jax_smash.hosts import HostOptions, join_hosts

        try:
            options = HostOptions(self.coordinator, self.num_processes, self.process_id, self.start_timeout)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return join_hosts(options)
