"""How a program finds the other processes that run it."""

import contextlib
import dataclasses
import importlib.metadata
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping

import jax

from jax_smash.hosts.ending import watch
from jax_smash.hosts.store import agree, first_line, is_first, processes, service
from jax_smash.platform import seems_to_have_tpu

START_TIMEOUT = 300
"""Seconds that a process waits for all others to start."""

HEARTBEAT_S = 30
"""Seconds after which a process that sends no sign of life counts as dead, and JAX ends the others."""

ALONE = "--num-processes 1 runs on this host alone"

VERSIONS = ("jax", "jaxlib", "jax_smash", "flax", "orbax-checkpoint")
"""Packages that every host must have in the same version."""


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """How a program joins the other hosts.

    Attributes:
      coordinator: `HOST:PORT` of process 0; None where JAX finds the processes itself, or there is one.
      num_processes: in all; 1 runs alone.
      process_id: of this process, from 0.
      start_timeout: seconds to wait for the others.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    start_timeout: int = START_TIMEOUT

    def __post_init__(self) -> None:
        given = (self.coordinator, self.num_processes, self.process_id)
        if given == (None, 1, None):
            return
        if any(x is None for x in given) and any(x is not None for x in given):
            names = ("coordinator", "num-processes", "process-id")
            missing = [f"--{name}" for name, x in zip(names, given, strict=True) if x is None]
            raise ValueError(
                f"--coordinator, --num-processes and --process-id go together; got no {' and no '.join(missing)}"
            )
        if self.coordinator is not None:
            host, colon, port = self.coordinator.rpartition(":")
            if not (host and colon and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
                raise ValueError(f"--coordinator must be HOST:PORT; got {self.coordinator!r}")
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError(f"--num-processes must be at least 1; got {self.num_processes}")
        if self.process_id is not None and not 0 <= self.process_id < (self.num_processes or 1):
            raise ValueError(
                f"--process-id must be from 0 to {(self.num_processes or 1) - 1}, one less than --num-processes; "
                f"got {self.process_id}"
            )
        if self.start_timeout < 1:
            raise ValueError(f"--start-timeout must be at least 1 second; got {self.start_timeout}")


def join_hosts(options: HostOptions = HostOptions(), *, heeds_sigterm: bool = False) -> int:
    """Joins the other hosts, for programs, before JAX takes its devices; returns how many processes there are.

    Without a coordinator, processes are found where JAX finds them itself: on pods of TPUs, and under SLURM, Open MPI
    and Kubernetes. Where nothing speaks of several processes, nothing is done. Joined processes end together: each
    ends when another does by `fail`, or gives no sign of life for `HEARTBEAT_S`.

    A process whose others do not come in time is ended with status 1, for JAX would end it too, with a stack trace.

    Args:
      options: how to join them.
      heeds_sigterm: the program asks `told_to_end` after each step. SIGTERM then ends no process by itself.

    Raises:
      ValueError: a version of JAX or of this package differs between the hosts.
      OSError: JAX's service cannot start here, or JAX found a cluster that it cannot use.
    """
    if jax.distributed.is_initialized():
        return processes()
    alone = options.num_processes == 1 or (options.coordinator is None and not seems_to_be_cluster())
    if alone:
        return 1
    jax.config.update("jax_enable_preemption_service", heeds_sigterm)
    with _at_most(options):
        try:
            jax.distributed.initialize(
                options.coordinator,
                options.num_processes,
                options.process_id,
                # Behind our own limit, whose error says more.
                initialization_timeout=options.start_timeout + HEARTBEAT_S,
                heartbeat_timeout_seconds=HEARTBEAT_S,
                shutdown_timeout_seconds=HEARTBEAT_S,
                cluster_detection_method=None if options.coordinator is None else "deactivate",
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise OSError(f"the hosts could not be joined: {first_line(error)}; {ALONE}") from error
        watch()
        agree(versions() | {"--num-processes": processes()}, options.start_timeout)
    if not is_first():
        # What is printed is the same on all hosts.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return processes()


def seems_to_be_cluster(environment: Mapping[str, str] | None = None) -> bool:
    """Returns whether anything speaks for several processes that JAX can find by itself.

    Args:
      environment: variables; None takes the process's.
    """
    variables = os.environ if environment is None else environment

    def many(name: str) -> bool:
        return variables.get(name, "1") not in ("", "1")

    hosts = variables.get("TPU_PROCESS_ADDRESSES") or variables.get("TPU_WORKER_HOSTNAMES") or ""
    return (
        (many("SLURM_NTASKS") and "SLURM_PROCID" in variables)
        or many("OMPI_COMM_WORLD_SIZE")
        or ("KUBERNETES_SERVICE_HOST" in variables and "JOB_COMPLETION_INDEX" in variables)
        or "," in hosts
        or many("MEGASCALE_NUM_SLICES")
        # A virtual machine of Google's with a TPU; JAX then asks it whether there are others.
        or (
            "tpu" in variables.get("JAX_PLATFORMS", "tpu")
            and "TPU_SKIP_MDS_QUERY" not in variables
            and not hosts
            and seems_to_have_tpu(environment=dict(variables))
        )
    )


@contextlib.contextmanager
def _at_most(options: HostOptions) -> Iterator[None]:
    """Ends this process where the others have not come in time: JAX waits for them where no exception reaches it."""
    came = threading.Event()

    def end() -> None:
        if not came.wait(options.start_timeout):
            print(f"error: {_absent(options)}", file=sys.stderr, flush=True)
            os._exit(1)

    threading.Thread(target=end, daemon=True, name="start timeout").start()
    try:
        yield
    finally:
        came.set()


def _absent(options: HostOptions) -> str:
    state = service()
    address = options.coordinator or state.coordinator_address
    own = state.process_id if options.process_id is None else options.process_id
    if address is None:
        return f"JAX did not find the other processes of this cluster in {options.start_timeout} s; {ALONE}"
    host, _, port = address.rpartition(":")
    if own:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        except OSError as error:
            return (
                f"the coordinator at {address} did not answer in {options.start_timeout} s ({first_line(error)}): "
                f"process 0 must run there, and the port be open to process {own}"
            )
    count = options.num_processes or state.num_processes
    return (
        f"not all of the {count} processes came to the coordinator at {address} in {options.start_timeout} s: "
        f"each must be started with its own --process-id from 0 to {count - 1}"
    )


def versions() -> dict[str, str]:
    """Returns the version of each package that hosts must have alike."""
    return {name: importlib.metadata.version(name) for name in VERSIONS}
