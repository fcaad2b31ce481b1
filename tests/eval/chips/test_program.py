import jax
import jax.numpy as jnp
import pytest

from eval.chips.program import Program, collectives, copies, tally
from jax_smash.sharding import axes_sharding, constrain, make_mesh, on_mesh


@pytest.mark.parametrize(
    ("axes", "kind", "shape"), [((None, "mlp"), "all-reduce", "f32[4,48]"), ((None,), "all-gather", "f32[64,48]")]
)
def test_what_devices_exchange_is_counted_by_kind_and_shape(axes, kind, shape):
    """A product whose contracted axis is divided is added up; asked for whole, its weight is gathered."""
    mesh = make_mesh("fsdp=2")

    def f(x, w):
        whole = axes == (None,)
        return constrain(x, None, None if whole else "embed") @ (constrain(w) if whole else w) + 1

    x = jax.ShapeDtypeStruct((4, 64), jnp.float32, sharding=axes_sharding((4, 64), (), mesh))
    w = jax.ShapeDtypeStruct((64, 48), jnp.float32, sharding=axes_sharding((64, 48), ("embed",), mesh))
    with on_mesh(mesh):
        program = Program.of(jax.jit(f).lower(x, w).compile())
    (found,) = tally(collectives(program.instructions()))
    sizes = [int(n) for n in shape[4:-1].split(",")]
    assert found == {"kind": kind, "shape": shape, "count": 1, "megabytes": 4 * sizes[0] * sizes[1] / 1e6}


def test_collectives_that_are_alike_are_counted_together():
    text = """ENTRY main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = (f32[2]{0}, f32[8]{0}) all-gather-start(%p), dimensions={0}
  %b = f32[8]{0} all-gather-done(%a)
  %c = (f32[2]{0}, f32[8]{0}) all-gather-start(%b), dimensions={0}
  %d = f32[8]{0} all-gather-done(%c)
  ROOT %e = bf16[4,32]{1,0} all-reduce(%d), to_apply=%add
}
"""
    assert tally(collectives(Program.read(text).instructions())) == [
        {"kind": "all-reduce", "shape": "bf16[4,32]", "count": 1, "megabytes": 256 / 1e6},
        {"kind": "all-gather", "shape": "f32[8]", "count": 2, "megabytes": 64 / 1e6},
    ]


def test_copies_are_those_of_the_arrays_that_stay_in_the_large_memory():
    text = """ENTRY main (p: bf16[8,4,2]) -> bf16[8,4,2] {
  %p = bf16[8,4,2]{2,1,0} parameter(0)
  %other = bf16[9,4,2]{2,1,0} copy(%q)
  %whole = bf16[8,4,2]{2,1,0} copy(%p)
  %turned = bf16[4,8,2]{2,1,0} transpose(%whole), dimensions={1,0,2}
  %fetch = (bf16[8,4,2]{2,1,0:S(1)}, bf16[8,4,2]{2,1,0}, u32[]) copy-start(%whole)
  %fetched = bf16[8,4,2]{2,1,0:S(1)} copy-done(%fetch)
  %inside = bf16[8,4,2]{2,1,0:S(1)} copy(%fetched)
  %back = (bf16[8,4,2]{2,1,0}, bf16[8,4,2]{2,1,0}, u32[]) copy-start(%whole)
  ROOT %end = bf16[8,4,2]{2,1,0} copy-done(%back)
}
"""
    found = copies(Program.read(text).instructions(), {(8, 4, 2)})
    assert [x.name for x in found] == ["whole", "turned", "back"]
