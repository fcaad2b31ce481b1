import pytest

from eval.chips.program import Program
from eval.chips.traffic import Traffic, held_bytes, moved, runs, traffic, unknown_loops

TEXT = """%pieces (p0: f32[100,8], p1: s32[4], p2: f32[8]) -> f32[4,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = s32[4]{0} parameter(1)
  %p2 = f32[8]{0:S(1)} parameter(2)
  %same = f32[100,8]{1,0} bitcast(%p0)
  %some = f32[4,8]{1,0} gather(%same, %p1), offset_dims={1}
  %wide = f32[4,8]{1,0} broadcast(%p2), dimensions={1}
  ROOT %sum = f32[4,8]{1,0} add(%some, %wide)
}

%update (p0.1: f32[100,8], p1.1: f32[1,8], p2.1: s32[]) -> f32[100,8] {
  %p0.1 = f32[100,8]{1,0} parameter(0)
  %p1.1 = f32[1,8]{1,0} parameter(1)
  %p2.1 = s32[] parameter(2)
  ROOT %put = f32[100,8]{1,0} dynamic-update-slice(%p0.1, %p1.1, %p2.1, %p2.1)
}

%outer (p0.2: f32[100,8], p1.2: s32[4], p2.2: f32[8]) -> f32[4,8] {
  %p0.2 = f32[100,8]{1,0} parameter(0)
  %p1.2 = s32[4]{0} parameter(1)
  %p2.2 = f32[8]{0:S(1)} parameter(2)
  %inner = f32[4,8]{1,0} fusion(%p0.2, %p1.2, %p2.2), kind=kLoop, calls=%pieces
  ROOT %all = f32[4,8]{1,0:S(1)} negate(%inner)
}

%inner_body (t: (s32[], f32[100,8])) -> (s32[], f32[100,8]) {
  %t = (s32[], f32[100,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[100,8]{1,0} get-tuple-element(%t), index=1
  %y = f32[100,8]{1,0} negate(%x)
  ROOT %r = (s32[], f32[100,8]{1,0}) tuple(%i, %y)
}

%inner_condition (t.1: (s32[], f32[100,8])) -> pred[] {
  %t.1 = (s32[], f32[100,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %end = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %end), direction=LT
}

%open_condition (t.2: (s32[], f32[100,8])) -> pred[] {
  %t.2 = (s32[], f32[100,8]{1,0}) parameter(0)
  %x.2 = f32[100,8]{1,0} get-tuple-element(%t.2), index=1
  ROOT %finite = pred[] is-finite(%x.2)
}

ENTRY %main (a: f32[100,8], b: s32[4]) -> f32[100,8] {
  %a = f32[100,8]{1,0} parameter(0)
  %b = s32[4]{0} parameter(1)
  %two = s32[] constant(2)
  %fetch = (f32[100,8]{1,0:S(1)}, f32[100,8]{1,0}, u32[]{:S(2)}) copy-start(%a)
  %fast = f32[100,8]{1,0:S(1)} copy-done(%fetch)
  %part = ((f32[100,8]{1,0}), f32[10,8]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:10], [0:8]}
  %gathered = f32[4,8]{1,0} fusion(%a, %b, %fast), kind=kLoop, calls=%pieces
  %nested = f32[4,8]{1,0:S(1)} fusion(%a, %b, %fast), kind=kLoop, calls=%outer
  %row = f32[1,8]{1,0} slice(%a), slice={[0:1], [0:8]}
  %written = f32[100,8]{1,0} fusion(%a, %row, %two), kind=kLoop, calls=%update
  %start = (s32[], f32[100,8]{1,0}) tuple(%two, %written)
  %counted = (s32[], f32[100,8]{1,0}) while(%start), condition=%inner_condition, body=%inner_body
  %known = (s32[], f32[100,8]{1,0}) while(%counted), condition=%open_condition, body=%inner_body, \
backend_config={"known_trip_count":{"n":"3"}}
  %open = (s32[]{:S(1)}, f32[100,8]{1,0}) while(%known), condition=%open_condition, body=%inner_body
  ROOT %result = f32[100,8]{1,0} get-tuple-element(%open), index=1
}
"""
WHOLE, ROWS = 3200, 128


@pytest.fixture(scope="module")
def program():
    return Program.read(TEXT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fetch", Traffic(WHOLE, 0)),
        ("fast", Traffic()),
        ("part", Traffic(320, 0)),
        ("gathered", Traffic(ROWS + 16, ROWS)),
        ("nested", Traffic(ROWS + 16, 0)),
        ("row", Traffic(32, 32)),
        ("written", Traffic(32 + 4, 32)),
        ("start", Traffic()),
        ("counted", Traffic()),
    ],
)
def test_an_operation_moves_what_it_needs_of_main_memory(program, name, expected):
    assert traffic(program, program.named("main")[name], "main") == expected


def test_a_loop_counts_as_often_as_it_runs(program):
    times = [run.times for run in runs(program, "main") if run.instruction.name == "y"]
    assert times == [5, 3, 1]  # From 2 to 7; as the compiler says; unknown.
    assert unknown_loops(program, "main") == ["open"]
    loops = sum(times) * 2 * WHOLE
    assert moved(program, [run for run in runs(program, "main") if run.computation == "inner_body"]) == loops


def test_what_a_loop_carries_in_fast_memory_is_held(program):
    named = program.named("main")
    assert [held_bytes(program, named[name]) for name in ("known", "open")] == [0, 4]


def test_of_branches_the_one_that_moves_most_is_counted():
    branch = """%{name} (p: f32[{size}]) -> f32[{size}] {{
  %p = f32[{size}]{{0}} parameter(0)
  ROOT %n = f32[{size}]{{0}} negate(%p)
}}
"""
    text = branch.format(name="small", size=2) + branch.format(name="large", size=50)
    text += """ENTRY %main (c: pred[], x: f32[2], y: f32[50]) -> f32[] {
  %c = pred[] parameter(0)
  %x = f32[2]{0} parameter(1)
  %y = f32[50]{0} parameter(2)
  ROOT %r = f32[] conditional(%c, %x, %y), branch_computations={%small, %large}
}
"""
    program = Program.read(text)
    assert moved(program, list(runs(program, "main"))) == 400
