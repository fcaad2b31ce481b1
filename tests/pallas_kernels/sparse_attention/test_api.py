import functools

import jax
import numpy as np
import pytest

from pallas_kernels.sparse_attention import kernel_here, sparse_attention
from pallas_kernels.sparse_attention.cases import Case, make
from tests.sparse_kernels import attended, named

CASE = named("ragged rows")
INPUTS, PAGES = make(CASE)
RUN = functools.partial(sparse_attention, scale=1.0, page_size=CASE.page_size)


@pytest.mark.parametrize("implementation", [None, "kernel"])
def test_a_cpu_gets_the_xla_path(implementation):
    assert kernel_here(INPUTS, PAGES, page_size=CASE.page_size) is None
    found, wanted = (attended(INPUTS, PAGES, CASE, name) for name in (implementation, "xla"))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("page_size", "kernel"), [(16, "tpu"), (24, None), (48, None)])
def test_no_kernel_runs_pages_that_are_refused(page_size, kernel, monkeypatch):
    inputs, pages = make(Case("", 1, 240, (9,), page_size=16, most=2, head_width=128))
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert kernel_here(inputs, pages, page_size=page_size) == kernel


def test_the_default_has_no_kernel_in_it():
    assert "pallas_call" not in str(jax.make_jaxpr(RUN)(INPUTS, PAGES))
    assert "pallas_call" in str(jax.make_jaxpr(functools.partial(RUN, implementation="kernel"))(INPUTS, PAGES))


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match=r"implementation must be one of kernel, xla, .*; got 'fast'"):
        RUN(INPUTS, PAGES, implementation="fast")


def test_only_a_kernel_can_be_interpreted():
    with pytest.raises(ValueError, match="only implementation tpu or gpu can be interpreted; got 'xla'"):
        RUN(INPUTS, PAGES, implementation="xla", interpret=True)
