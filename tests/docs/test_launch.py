"""Launch files are what their readers take, and the commands in them are what our programs take."""

import functools
import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import tyro
import yaml

from jax_smash.cli.main import parse
from jax_smash.hosts import HostOptions
from jax_smash.sharding import parse_mesh

LAUNCH = Path(__file__).parent.parent.parent / "docs" / "launch"
SCRIPTS, MANIFESTS = sorted(LAUNCH.glob("*.sh")), sorted(LAUNCH.glob("*.yaml"))
PAGE = (LAUNCH.parent / "pods.md").read_text()


def pod_specs(part):
    """Yields how many pods each part of a manifest has, and what a pod is."""
    if isinstance(part, dict):
        if "parallelism" in part:
            yield part["parallelism"], part["template"]["spec"]
        for value in part.values():
            yield from pod_specs(value)
    elif isinstance(part, list):
        for value in part:
            yield from pod_specs(value)


def of_script(text):
    """Returns the command that a SLURM script runs, and how many devices it has: a process a GPU."""
    given = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    assert given["ntasks-per-node"] == given["gpus-per-node"]
    words = shlex.split(re.search(r"^srun (.*?[^\\])$", text, re.MULTILINE | re.DOTALL)[1].replace("\\\n", " "))
    while words[0].startswith("-"):
        words.pop(0)
    return words, int(given["nodes"]) * int(given["gpus-per-node"])


def of_manifest(text):
    """Returns the command that the pods of a manifest run, and how many devices they have."""
    ((pods, spec),) = pod_specs([*yaml.safe_load_all(text)])
    (container,) = spec["containers"]
    (devices,) = container["resources"]["limits"].values()
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    return container["command"] + [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["args"]], (
        pods * devices
    )


def options(command):
    """Returns what a program's own parser makes of a command's options."""
    if command[:2] == ["jax-smash", "generate"]:
        found = parse(command[1:])
        return {"mesh": found.mesh, "hosts": found.hosts}
    assert command[:2] == ["python", "-m"], command
    main = importlib.import_module(command[2]).main
    taken = {}

    @functools.wraps(main)
    def record(*_, **given):
        taken.update(given)

    tyro.cli(record, args=command[3:], config=(tyro.conf.OmitArgPrefixes,))
    return taken


def read(path):
    return (of_script if path.suffix == ".sh" else of_manifest)(path.read_text())


@pytest.mark.parametrize("path", SCRIPTS + MANIFESTS, ids=lambda p: p.name)
def test_a_launch_file_runs_a_command_that_the_program_takes_on_all_devices(path):
    command, devices = read(path)
    taken = options(command)
    assert parse_mesh(taken["mesh"]).size == devices
    if "hosts" in taken and taken["hosts"].coordinator is not None:
        hosts = taken["hosts"]
        assert HostOptions(hosts.coordinator, hosts.num_processes, hosts.process_id)
        assert devices % hosts.num_processes == 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_bash_reads_a_script_to_its_end(path):
    assert shutil.which("bash")
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("word", ["--mehs=fsdp=16", "--save-every=often"])
def test_an_option_that_the_program_does_not_take_would_be_seen(word, capsys):
    command, _ = read(LAUNCH / "slurm-train.sh")
    with pytest.raises(SystemExit):
        options([*command, word])
    assert word.partition("=")[0] in capsys.readouterr().err


def test_the_page_names_every_launch_file():
    assert {*re.findall(r"launch/([\w-]+\.(?:sh|yaml))", PAGE)} == {path.name for path in SCRIPTS + MANIFESTS}


@pytest.mark.parametrize(
    "line", re.findall(r"^(?:.*?)((?:python -m train|jax-smash generate) .*)$", PAGE, re.MULTILINE)
)
def test_the_commands_of_the_page_are_what_the_programs_take(line):
    assert options(shlex.split(line.rstrip("`'\"")))
