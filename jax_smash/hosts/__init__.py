"""Several hosts that run one program: how they find each other, agree on what they run, decide alike and end together.

Each host runs the program once, as one of JAX's processes. JAX's own service joins them (`jax.distributed`), and arrays
then span their devices. Process 0, the *first*, decides what a host decides, and alone writes files.
"""

from jax_smash.hosts.ending import fail, loss_of_host, told_to_end
from jax_smash.hosts.join import START_TIMEOUT, HostOptions, join_hosts, seems_to_be_cluster
from jax_smash.hosts.store import agree, decided, is_first, joined, processes, told_by_all, wait_for_all

__all__ = [
    "START_TIMEOUT",
    "HostOptions",
    "agree",
    "decided",
    "fail",
    "is_first",
    "join_hosts",
    "joined",
    "loss_of_host",
    "processes",
    "seems_to_be_cluster",
    "told_by_all",
    "told_to_end",
    "wait_for_all",
]
