"""Tests run on the CPU with eight virtual devices, strict dtypes, no silent broadcasting and checked shapes."""

import gc
import os
import pathlib

# Before jax is imported: how many devices there are is fixed then, and an installed libtpu must not be asked.
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_SMASH_TEST_PLATFORMS", "cpu")
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # Programs must not come from, or go to, the user's directory.

from jaxtyping import install_import_hook

# Shapes stand in annotations; here they are checked at every call.
install_import_hook(["jax_smash", "pallas_kernels"], "beartype.beartype")

import jax  # noqa: E402
import pytest  # noqa: E402

from tests.compiling import compile_quickly  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
compile_quickly()  # Tests that read a compiled program turn optimisations back on.

# Every compiled program holds a dozen memory mappings for as long as it is cached. Linux grants a process 65,530; the
# suite needs more, and XLA crashes without them.
MAPPINGS = 15_000


# Cases that a run by default leaves out, for others like them take less time.
SLOW_CASES = frozenset((pathlib.Path(__file__).parent / "slow_cases.txt").read_text().split("\n"))


def pytest_addoption(parser):
    parser.addoption("--one-case", action="store_true", help="of each parametrised test only the first case")
    parser.addoption("--every", type=int, default=1, help="only one test in so many, the first included")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid in SLOW_CASES:
            item.add_marker(pytest.mark.slow)
    yield
    # Behind the choice by markers: of those that are left.
    kept = _sampled(items, one_case=config.getoption("--one-case"), every=config.getoption("--every"))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish():
    """Collects garbage less often, and not among what is there before the first test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report):
    """Names what fails as soon as it does: a run that is cut off has no summary."""
    if not report.failed:
        return None
    outcome = "failed" if report.when == "call" else "error"
    return outcome, f"{outcome[0].upper()}({report.nodeid})", outcome.upper()


def _sampled(items, *, one_case, every):
    """Returns the first case of each test, or all, of one test in so many."""
    kept, tests = set(), {}
    for item in items:
        test = item.nodeid.split("[")[0]
        new = test not in tests
        if tests.setdefault(test, len(tests)) % every == 0 and (new or not one_case):
            kept.add(item)
    return kept


@pytest.fixture
def optimised():
    """Compiles with all optimisations, as users do: for tests that read programs, or run a real model."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module", autouse=True)
def _few_programs():
    """Forgets compiled programs after a module where many are held."""
    yield
    _forget_many()


@pytest.fixture(autouse=True)
def _few_programs_of_a_matrix(request):
    """Likewise after each slow test: one module may have hundreds, with programs of their own."""
    yield
    if request.node.get_closest_marker("slow"):
        _forget_many()


def _forget_many():
    mappings = pathlib.Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MAPPINGS:
        from jax_smash.decode.programs import PROGRAMS

        PROGRAMS.forget()
