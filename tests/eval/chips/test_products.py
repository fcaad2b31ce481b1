import jax
import jax.numpy as jnp
import pytest

from eval.chips.products import products
from eval.chips.program import Program


def convolution(left, right, out, rest):
    program = Program.read(f"""ENTRY %main (a: {left}, b: {right}) -> {out} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %c = {out} convolution(%a, %b), {rest}
}}
""")
    (found,) = products(program, program.named("main")["c"], "main")
    return found


@pytest.mark.parametrize(
    ("left", "right", "out", "rest", "expected"),
    [
        # [8, 2048] · [2048, 48 · 64], its columns as two axes of a window.
        (
            *("bf16[8,2048,1,1]", "bf16[8,6,64,2048]", "bf16[8,8,6,64]"),
            "window={size=8x6 pad=7_7x5_5 rhs_reversal=1x1}, dim_labels=bf01_01oi->b01f",
            2 * 8 * 2048 * 48 * 64,
        ),
        # 8 · 4 products of [5, 64] · [64, 16], rows and heads as dilated axes.
        (
            *("bf16[8,4,5,64]", "bf16[8,4,64,16]", "f32[8,4,5,16]"),
            "window={size=8x4 stride=7x3 lhs_dilate=8x4}, dim_labels=01bf_01io->01bf",
            2 * 8 * 4 * 5 * 64 * 16,
        ),
        # Contracted over a window of 8 · 4.
        (
            *("bf16[3,8,4,64]", "bf16[8,4,64,32]", "f32[3,1,1,32]"),
            "window={size=8x4}, dim_labels=b01f_01io->b01f",
            2 * 3 * 8 * 4 * 64 * 32,
        ),
    ],
)
def test_products_that_are_written_as_convolutions_count_no_padding(left, right, out, rest, expected):
    assert convolution(left, right, out, rest) == ("bf16", expected)


@pytest.mark.usefixtures("optimised")
def test_a_compiled_product_is_counted_inside_fusions_too():
    program = Program.of(
        jax.jit(lambda x, y: jnp.exp(jnp.einsum("bik,bkj->bij", x, y)))
        .lower(jnp.ones((3, 5, 7)), jnp.ones((3, 7, 11)))
        .compile()
    )
    found = [made for x in program.computations[program.entry] for made in products(program, x, program.entry)]
    assert found == [("f32", 2 * 3 * 5 * 7 * 11)]
