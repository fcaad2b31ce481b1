import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jax_smash.platform import QUIET_VARIABLES, seems_to_have_tpu


def machine(tmp_path: Path, *cards: tuple[str, str], devices: tuple[str, ...] = ()) -> dict[str, Path]:
    """Makes the folders in which a machine tells its devices: PCI cards by vendor and class, and device files."""
    for i, (vendor, kind) in enumerate(cards):
        card = tmp_path / "pci" / f"0000:00:{i:02x}.0"
        card.mkdir(parents=True)
        (card / "vendor").write_text(f"{vendor}\n")
        (card / "class").write_text(f"{kind}\n")
    for name in devices:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    return {"pci": tmp_path / "pci", "devices": tmp_path / "dev"}


@pytest.mark.parametrize(
    ("cards", "devices"),
    [
        ([("0x1ae0", "0xff0000")], ()),
        ([("0x8086", "0x060000"), ("0x1ae0", "0x120000")], ()),
        ([], ("accel0",)),
        ([], ("vfio/0", "vfio/vfio")),
    ],
)
def test_a_machine_with_a_tpu_is_told_by_its_devices(tmp_path, cards, devices):
    assert seems_to_have_tpu(**machine(tmp_path, *cards, devices=devices), environment={})


@pytest.mark.parametrize(
    ("cards", "devices"),
    [
        ([], ()),
        ([("0x10de", "0x030200")], ("nvidia0", "vfio/vfio")),
        ([("0x1ae0", "0x020000"), ("0x1ae0", "0x010802")], ()),
    ],
)
def test_gpus_and_googles_network_and_disks_are_no_tpu(tmp_path, cards, devices):
    where = machine(tmp_path, *cards, devices=devices)
    assert not seems_to_have_tpu(**where, environment=dict.fromkeys(QUIET_VARIABLES, "1"))


@pytest.mark.parametrize("variable", ["TPU_NAME", "TPU_WORKER_HOSTNAMES", "CLOUD_TPU_TASK_ID", "JAX_FORCE_TPU_INIT"])
def test_a_variable_that_speaks_of_a_tpu_counts_as_one(tmp_path, variable):
    assert seems_to_have_tpu(**machine(tmp_path), environment={variable: ""})


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, check=False
    )


def has_libtpu() -> bool:
    return run("import libtpu").returncode == 0


@pytest.mark.skipif(seems_to_have_tpu(), reason="there may be a TPU here")
def test_a_machine_without_a_tpu_starts_without_a_word_about_tpus():
    quiet = run("from jax_smash.platform import prepare_devices; prepare_devices(); import jax; print(jax.devices())")
    assert quiet.returncode == 0
    assert "Device" in quiet.stdout
    assert "tpu" not in quiet.stderr.lower()


@pytest.mark.skipif(seems_to_have_tpu() or not has_libtpu(), reason="needs libtpu and no TPU")
def test_a_tpu_that_is_asked_for_by_name_is_tried():
    asked = run("from jax_smash.platform import prepare_devices; prepare_devices()", JAX_PLATFORMS="tpu")
    assert asked.returncode == 1
    assert "OSError: JAX cannot use the platform 'tpu' that JAX_PLATFORMS names: " in asked.stderr
    assert "there is no TPU on this machine" not in asked.stderr


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        ("abacus", "JAX cannot use the platform 'abacus' that JAX_PLATFORMS names: .*'abacus' is not in the list"),
        ("cuda", r"JAX cannot use the platform 'cuda' that JAX_PLATFORMS names: "),
    ],
)
def test_a_platform_that_is_missing_is_named_in_one_line(platform, message):
    code = (
        "from jax_smash.platform import prepare_devices\n"
        "try:\n    prepare_devices()\nexcept OSError as error:\n    print(error)\nelse:\n    print('there')"
    )
    said = run(code, JAX_PLATFORMS=platform)
    if said.stdout == "there\n":
        pytest.skip(f"{platform} is there")
    assert said.returncode == 0, said.stderr
    assert re.match(message, said.stdout), said.stdout
    assert said.stdout.count("\n") == 1


def test_the_devices_of_a_program_that_has_begun_stay_as_they_are():
    import jax

    from jax_smash.platform import prepare_devices

    before = jax.devices()
    prepare_devices()
    assert jax.devices() == before
