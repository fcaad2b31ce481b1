from eval.chips.program import Program
from eval.chips.relayouts import relayouts

TEXT = """%turn (p: f32[64,32]) -> f32[32,64] {
  %p = f32[64,32]{1,0} parameter(0)
  %t = f32[32,64]{1,0} transpose(%p), dimensions={1,0}
  ROOT %b = f32[32,64]{1,0} bitcast(%t)
}

%work (p.1: f32[64,32]) -> f32[32,64] {
  %p.1 = f32[64,32]{1,0} parameter(0)
  %t.1 = f32[32,64]{1,0} transpose(%p.1), dimensions={1,0}
  ROOT %n.1 = f32[32,64]{1,0} negate(%t.1)
}

%body (s: (f32[64,32], f32[8])) -> (f32[64,32], f32[8]) {
  %s = (f32[64,32]{1,0}, f32[8]{0}) parameter(0)
  %x = f32[64,32]{1,0} get-tuple-element(%s), index=0
  %v = f32[8]{0} get-tuple-element(%s), index=1
  %turned = f32[32,64]{1,0} fusion(%x), kind=kLoop, calls=%turn
  %worked = f32[32,64]{1,0} fusion(%x), kind=kLoop, calls=%work
  %there = f32[64,32]{0,1:S(1)} copy(%x)
  %short = f32[8]{0} copy(%v)
  ROOT %r = (f32[64,32]{1,0}, f32[8]{0}) tuple(%x, %v)
}

%more (s.1: (f32[64,32], f32[8])) -> pred[] {
  %s.1 = (f32[64,32]{1,0}, f32[8]{0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: f32[64,32], b: f32[8]) -> (f32[64,32], f32[8]) {
  %a = f32[64,32]{1,0} parameter(0)
  %b.1 = f32[8]{0} parameter(1)
  %fetched = f32[64,32]{1,0:S(1)} copy(%a)
  %prefetch = (f32[64,32]{1,0:S(1)}, f32[64,32]{1,0}, u32[]) copy-start(%a)
  %kept = (f32[64,32]{1,0}, f32[64,32]{1,0}, u32[]) copy-start(%a)
  %flat = f32[2,1024]{1,0} reshape(%a)
  %start = (f32[64,32]{1,0}, f32[8]{0}) tuple(%a, %b.1)
  ROOT %w = (f32[64,32]{1,0}, f32[8]{0}) while(%start), condition=%more, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_copies_are_found_in_loops_and_fast_memory_and_named():
    reasons = {"a weight": {(32, 64)}, "a cache": {(4, 512)}}
    found = relayouts(Program.read(TEXT), "body", reasons, least=1000)
    told = {(x.shape, x.place, x.times, x.bytes, x.reason) for x in found}
    assert told == {
        ("f32[32,64]", "loop", 5, 5 * 8192, "a weight"),  # The fusion that only turns it.
        ("f32[64,32]", "loop", 5, 5 * 8192, "a weight"),  # Into fast memory, and into another layout.
        ("f32[64,32]", "call", 1, 8192, "a weight"),
        ("f32[2,1024]", "call", 1, 8192, "a weight"),
    }
    assert len(found) == 4


def test_a_copy_of_nothing_known_has_no_reason():
    assert {x.reason for x in relayouts(Program.read(TEXT), "body", {"another": {(3, 5, 7)}}, least=1000)} == {None}
