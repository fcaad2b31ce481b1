"""Which devices JAX is given: a TPU runtime without a TPU stays asleep, and a platform that is missing is named.

Nothing here changes the environment, and nothing hides a device that is there.
"""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import jax
from jax.extend.backend import register_backend_factory

GOOGLE = "0x1ae0"
"""PCI vendor of TPUs, and of the network and storage devices of Google's virtual machines."""

NO_TPU_CLASSES = ("0x01", "0x02", "0x06")
"""PCI classes of what Google makes besides: storage, network, bridges."""

QUIET_VARIABLES = (
    "TPU_SKIP_MDS_QUERY",
    "TPU_LIBRARY_PATH",
    "TPU_MIN_LOG_LEVEL",
    "TPU_STDERR_LOG_LEVEL",
    "TPU_LOG_DIR",
)
"""Variables that say nothing of whether there is a TPU: JAX sets the first where it finds none, libtpu the second."""

EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}
"""The extra that brings the plug-in of a platform."""


tracing_for = jax.make_user_context(default_value="")
"""Used as `with tracing_for("tpu"):`, has programs traced there made for that platform, whatever devices JAX has."""


def target_platform() -> str:
    """Returns the platform that programs are traced for, as `jax.default_backend` names it.

    What is right on every platform goes by `jax.lax.platform_dependent`. This is for what must be known earlier: which
    kernels to import, and how large a tree is.
    """
    return tracing_for.value or jax.default_backend()


def prepare_devices() -> None:
    """Lets JAX take its devices, for programs: skips an absent TPU, and refuses a platform that is not there.

    Afterwards the devices are fixed, so virtual ones (`sharding.add_virtual_devices`) must have been asked for before.

    Raises:
      OSError: `JAX_PLATFORMS` names a platform that JAX cannot use.
    """
    skip_absent_tpu()
    check_platforms()


def skip_absent_tpu() -> None:
    """Keeps JAX from starting the TPU runtime on a machine without a TPU, where it would only write warnings.

    Does nothing where there is any sign of a TPU: a device, a `TPU_` variable, `JAX_PLATFORMS` naming one; nor once JAX
    has taken its devices. Other platforms are chosen as always, and TPU programs can still be compiled ahead.
    """
    if "tpu" in _asked() or seems_to_have_tpu():
        return
    try:
        register_backend_factory("tpu", _no_tpu, priority=300, fail_quietly=True)
    except RuntimeError:  # JAX has started it already.
        return


def check_platforms() -> None:
    """Has JAX take its devices, and says in one line what is wrong where it cannot.

    Raises:
      OSError: `JAX_PLATFORMS` names a platform that JAX cannot use.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = _asked()
        # Of a platform without a device JAX says nothing at all.
        reason = (str(error).strip() or "no such device is there").splitlines()[0].split(" (set JAX_PLATFORMS")[0]
        raise OSError(
            f"JAX cannot use the platform {asked!r} that JAX_PLATFORMS names: {reason}"
            f"{_advice(asked)}; unset JAX_PLATFORMS to let JAX choose"
        ) from error


def seems_to_have_tpu(
    devices: Path = Path("/dev"), pci: Path = Path("/sys/bus/pci/devices"), environment: dict[str, str] | None = None
) -> bool:
    """Returns whether anything speaks for a TPU on this machine; in doubt, True.

    Args:
      devices: where TPUs stand as `accel*`, or as numbers below `vfio`.
      pci: a folder for each device, with its `vendor` and `class`.
      environment: variables; None takes the process's.
    """
    variables = os.environ if environment is None else environment
    if any(v == "JAX_FORCE_TPU_INIT" or _speaks_of_tpu(v) for v in variables):
        return True
    if any(devices.glob("accel*")) or any(devices.glob("vfio/[0-9]*")):
        return True
    return any(
        _read(device / "vendor") == GOOGLE and not _read(device / "class").startswith(NO_TPU_CLASSES)
        for device in pci.glob("*")
    )


def _asked() -> str:
    """Returns the platforms that JAX is told to use, as in `cuda,cpu`; empty where it may choose."""
    return getattr(jax.config, "jax_platforms", None) or ""


def _speaks_of_tpu(variable: str) -> bool:
    named = variable.startswith(("TPU_", "CLOUD_TPU_", "COLAB_TPU_", "LIBTPU_"))
    return named and variable not in QUIET_VARIABLES


def _no_tpu() -> None:
    raise RuntimeError("there is no TPU on this machine")


def _advice(asked: str) -> str:
    for platform in asked.split(","):
        extra = EXTRAS.get(platform)
        if extra is not None and not _installed(extra):
            return f"; its plug-in is missing: pip install 'jax_smash[{extra}]'"
    return ""


def _installed(extra: str) -> bool:
    """Returns whether the plug-in that an extra brings is installed."""
    if extra == "tpu":
        return importlib.util.find_spec("libtpu") is not None
    return any("cuda" in point.name for point in importlib.metadata.entry_points(group="jax_plugins"))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
