import signal

import pytest

from jax_smash.hosts import HostOptions, join_hosts, seems_to_be_cluster
from tests.hosts import Hosts

MEETING = ("-m", "tests.meeting_host")
ABSENT = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"coordinator": "host:1"}, "no --num-processes and no --process-id"),
        ({"num_processes": 2}, "no --coordinator and no --process-id"),
        ({"coordinator": "host", "num_processes": 2, "process_id": 0}, "--coordinator must be HOST:PORT; got 'host'"),
        ({"coordinator": "host:x", "num_processes": 2, "process_id": 0}, "HOST:PORT"),
        ({"coordinator": "host:70000", "num_processes": 2, "process_id": 0}, "HOST:PORT"),
        ({"coordinator": "host:1", "num_processes": 0, "process_id": 0}, "--num-processes must be at least 1; got 0"),
        ({"coordinator": "host:1", "num_processes": 2, "process_id": 2}, "--process-id must be from 0 to 1"),
        ({"coordinator": "host:1", "num_processes": 2, "process_id": -1}, "--process-id must be from 0 to 1"),
        ({"coordinator": "host:1", "num_processes": 2, "process_id": 1, "start_timeout": 0}, "--start-timeout"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        HostOptions(**options)


def test_one_process_waits_for_nobody():
    assert join_hosts(HostOptions(num_processes=1)) == 1


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_NTASKS": "4"}, False),  # A shell of `salloc`, in which no task runs.
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"MEGASCALE_NUM_SLICES": "2"}, True),
    ],
)
def test_a_cluster_is_known_by_its_variables(variables, several):
    assert seems_to_be_cluster(variables | {"JAX_PLATFORMS": "cpu"}) == several


@pytest.mark.slow
def test_two_processes_decide_alike_and_the_first_alone_prints():
    first, other = Hosts(MEETING).ended()
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    assert "first" in first.output
    assert "another" not in other.output
    for process in (first, other):
        assert "decided [0, 'alike']" in process.errors


@pytest.mark.slow
def test_other_options_and_other_versions_are_named_by_process():
    ended = Hosts(MEETING, each=[(), ("--jax", "0.0.1")]).ended()
    for process in ended:
        assert process.status == 1
        assert "process 1 of 2 has jax 0.0.1 where process 0 has" in process.errors
    ended = Hosts(MEETING, each=[("--word", "one"), ("--word", "two")]).ended()
    for process in ended:
        assert process.status == 1
        assert "process 1 of 2 has --word two where process 0 has one" in process.errors
        assert "Traceback" not in process.errors


@pytest.mark.slow
def test_a_process_that_fails_ends_the_others_with_its_reason():
    first, other = Hosts(MEETING, each=[("--word", "alike"), ("--fail",)]).ended()
    assert (first.status, other.status) == (1, 1)
    assert "the disk is full of stars" in other.errors
    assert first.status == 1
    assert "process 1 of 2 ended: the disk is full of stars" in first.errors


@pytest.mark.slow
def test_a_process_that_is_killed_is_named_and_all_end_within_a_minute():
    hosts = Hosts(MEETING, 3, each=[("--word", "waits")] * 3)
    hosts.kill_when(2, lambda: "decided" in hosts.errors(2))
    first, other, killed = hosts.ended()
    assert killed.status == -9
    assert "note: process 2 of 3 gave no sign of life for 15 s" in first.errors
    for process in (first, other):
        assert process.status != 0
        assert process.seconds < 60
        assert "another task died" in process.errors


@pytest.mark.slow
def test_sigterm_ends_a_process_that_does_not_heed_it():
    hosts = Hosts(MEETING, 2, each=[("--word", "waits")] * 2)
    hosts.kill_when(1, lambda: "decided" in hosts.errors(1), by=signal.SIGTERM)
    _, told = hosts.ended()
    assert told.status == -signal.SIGTERM
    assert told.seconds < 5


@pytest.mark.slow
def test_a_coordinator_that_never_answers_is_named():
    absent = ("--coordinator", ABSENT, "--num-processes", 2, "--process-id", 1, "--start-timeout", 2)
    (process,) = Hosts(MEETING, 1, each=[absent]).ended(timeout=60)
    assert process.status == 1
    assert f"error: the coordinator at {ABSENT} did not answer in 2 s" in process.errors
    assert len(process.errors.splitlines()) == 1


@pytest.mark.slow
def test_a_process_that_never_comes_is_told_of():
    hosts = Hosts(MEETING, 1, each=[("--num-processes", 3, "--start-timeout", 2)])
    (process,) = hosts.ended(timeout=60)
    assert process.status == 1
    assert f"error: not all of the 3 processes came to the coordinator at {hosts.address} in 2 s" in process.errors
