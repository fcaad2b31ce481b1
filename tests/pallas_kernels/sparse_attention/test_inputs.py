import jax.numpy as jnp
import pytest

from pallas_kernels.sparse_attention import sparse_attention
from pallas_kernels.sparse_attention.cases import make
from tests.sparse_kernels import named

INPUTS, PAGES = make(named("ragged rows"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": PAGES.table[:1]}, r"table must be \(2, 2 or 1, pages\); got \(1, 2, 4\)"),
        ({"table": PAGES.table[:, :, :0]}, r"table must be \(2, 2 or 1, pages\); got \(2, 2, 0\)"),
        ({"counts": PAGES.counts[:, :1]}, r"counts must be \(2, 2\) beside a table of \(2, 2, 4\); got \(2, 1\)"),
        ({"filled": PAGES.counts[:, :1]}, r"filled must be \(2, 2\) beside a table of \(2, 2, 4\); got \(2, 1\)"),
        ({"table": PAGES.table.astype(jnp.uint32)}, "table must be int32; got uint32"),
        ({"counts": PAGES.counts.astype(jnp.int16)}, "counts must be int32; got int16"),
    ],
)
def test_tables_that_do_not_belong_to_the_cache_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sparse_attention(INPUTS, PAGES._replace(**changes), scale=1.0, page_size=32)


def test_slots_that_are_known_to_be_filled_go_without_a_window():
    pages = PAGES._replace(filled=PAGES.counts)
    with pytest.raises(ValueError, match="filled must be None with a window, which compares positions; got window 9"):
        sparse_attention(INPUTS, pages, scale=1.0, page_size=32, window=9)


INT8, SCALED = make(named("int8"))


@pytest.mark.parametrize(
    ("of_inputs", "of_pages", "message"),
    [
        ({}, {"scales": None}, "scales must be given where keys are int8; got None"),
        ({"keys": INPUTS.keys}, {"scales": None}, "scales must be given where values are int8; got None"),
        ({"keys": INPUTS.keys}, {}, "keys must be int8 where scales are given; got float32"),
        ({"values": INPUTS.values}, {}, "values must be int8 where scales are given; got float32"),
        ({}, {"scales": SCALED.scales[:, :, 0]}, r"scales must be \(2, 2, 2, 512\) .*; got \(2, 2, 512\)"),
        ({}, {"scales": SCALED.scales.astype(jnp.bfloat16)}, "scales must be float32; got bfloat16"),
        ({"key": INT8.key.astype(jnp.int8)}, {}, "key must be float32; got int8"),
    ],
)
def test_int8_that_does_not_go_with_its_scales_is_refused(of_inputs, of_pages, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sparse_attention(INT8._replace(**of_inputs), SCALED._replace(**of_pages), scale=1.0)


@pytest.mark.parametrize("page_size", [0, 8, 48, 256, 1024])
def test_a_page_that_is_no_power_of_two_in_range_is_refused(page_size):
    with pytest.raises(ValueError, match=f"page_size must be a power of two from 16 to 128 .*; got {page_size}"):
        sparse_attention(INPUTS, PAGES, scale=1.0, page_size=page_size)


def test_a_page_that_does_not_divide_the_cache_is_refused():
    cut = {name: getattr(INPUTS, name)[:, :, :496] for name in ("keys", "values")}
    inputs = INPUTS._replace(**cut, slot_position=INPUTS.slot_position[:, :496])
    with pytest.raises(ValueError, match="divides 496 slots; got 32"):
        sparse_attention(inputs, PAGES, scale=1.0, page_size=32)


def test_what_tree_attention_refuses_is_refused():
    with pytest.raises(TypeError, match="key must be float32; got bfloat16"):
        sparse_attention(INPUTS._replace(key=INPUTS.key.astype(jnp.bfloat16)), PAGES, scale=1.0, page_size=32)
