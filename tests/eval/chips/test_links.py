import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from eval.chips.links import group_size, link_bytes
from eval.chips.program import Program, collectives
from jax_smash.sharding import make_mesh


def instruction(line):
    return Program.read(f"ENTRY %main (x: f32[8,4]) -> f32[8,4] {{\n  ROOT %r = {line}\n}}\n").named("main")["r"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[8,4]{1,0} all-reduce(%x), replica_groups={{0,1,2,3}}", 2 * 128 * 3 // 4),
        ("f32[8,4]{1,0} all-gather(%x), replica_groups=[2,4]<=[8]", 128 * 3 // 4),
        ("f32[8,4]{1,0} reduce-scatter(%x), replica_groups={{0,1}}", 128),
        ("f32[8,4]{1,0} collective-permute(%x), source_target_pairs={{0,1}}", 128),
        ("f32[8,4]{1,0} negate(%x)", 0),
        # Several arrays at once.
        ("(f32[8,4]{1,0}, f32[8,8]{1,0}) all-reduce(%x, %y), replica_groups={{0,1}}", 128 + 256),
        ("(f32[8,4]{1,0}, f32[8,4]{1,0}) all-to-all(%x, %y), replica_groups={{0,2},{1,3}}", 128),
        # What is begun returns what it reads, too.
        ("(f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), replica_groups=[2,4]<=[8]", 96),
        ("(f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}", 128),
        ("(f32[8,4]{1,0}, f32[8,4]{1,0}) all-reduce-start(%x, %y), replica_groups={{0,1}}", 256),
    ],
)
def test_a_collective_sends_what_a_ring_needs(line, expected):
    assert link_bytes(instruction(line)) == expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", 2),
        ("{{0,1,2,3,4,5,6,7}}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[8]", 2),
        ("[2,4]<=[4,2]T(1,0)", 4),
        ("[4,2]<=[2,2,2]T(0,2,1)", 2),
        ("[1,8]<=[8]", 8),
        ("{}", 16),
        ("mesh['data'=2,'fsdp'=2,'tp'=4] {'tp'}", 4),
        ("mesh['data'=2,'fsdp'=2,'tp'=4] {'data','tp'}", 8),
        ("mesh['data'=2,'tp'=8] {'tp':(2)4}", 4),
    ],
)
def test_every_spelling_of_groups_is_read(groups, expected):
    line = f"f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, replica_groups={groups}, use_global_device_ids=true"
    assert group_size(instruction(line), 16) == expected


def test_an_unknown_spelling_is_refused_and_not_guessed():
    with pytest.raises(ValueError, match="must be listed, counted or axes of a mesh"):
        group_size(instruction("f32[8,4]{1,0} all-reduce(%x), replica_groups=<8>, to_apply=%add"), 8)


@pytest.mark.parametrize("axes", [("data",), ("tp",), ("data", "tp"), ("data", "fsdp", "tp")])
def test_what_this_jax_compiles_is_read(axes):
    mesh = make_mesh("data=2,fsdp=2,tp=2")
    whole = PartitionSpec()
    summed = jax.shard_map(
        functools.partial(jax.lax.psum, axis_name=axes), mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False
    )
    program = Program.of(jax.jit(summed).lower(jax.ShapeDtypeStruct((8, 4), jnp.float32)).compile())
    (found,) = collectives(program.instructions())
    assert program.devices == 8
    assert group_size(found, program.devices) == 2 ** len(axes)
    assert link_bytes(found, program.devices) == 2 * 128 * (2 ** len(axes) - 1) // 2 ** len(axes)
