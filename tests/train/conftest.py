"""What every test of training shares: what is made once a process and found again."""

import os
import shutil

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.compiling import QUICKLY


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder of compiled programs, this process's alone."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def same_programs(cache, tmp_path_factory):
    """The environment of another process, with `--devices 8`, that compiles as this one does and finds its programs."""

    def environment():
        # A copy, since a process that is killed may leave half a program.
        found = shutil.copytree(cache, tmp_path_factory.mktemp("copied"), dirs_exist_ok=True)
        return os.environ | {
            "JAX_PLATFORMS": "cpu",
            **QUICKLY,  # Other code may round otherwise.
            "JAX_COMPILATION_CACHE_DIR": str(found),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }

    return environment


@pytest.fixture(scope="module", autouse=True)
def _programs_on_disk(cache):
    """Finds compiled programs again: every run jits its step anew, which compiles for longer than it is traced."""
    given = {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_enable_xla_caches": "none",  # Else the folder's name is a part of what is looked for.
    }
    before = {name: getattr(jax.config, name) for name in given}
    for name, value in given.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # Whether one is used was decided with the first program.
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
