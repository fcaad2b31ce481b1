import pytest

from eval.chips.figures import step_exchanges
from eval.chips.program import Program

TEXT = """HloModule decode, num_partitions=2

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %a.b = f32[] add(%a, %b)
}

%elsewhere (p: f32[8,50]) -> f32[8,100] {
  %p = f32[8,50]{1,0} parameter(0)
  ROOT %joined = f32[8,100]{1,0} all-gather(%p), channel_id=8, replica_groups={{0,1}}, dimensions={1}
}

%on_another_core (p.1: f32[8,50]) -> f32[8,100] {
  %p.1 = f32[8,50]{1,0} parameter(0)
  ROOT %call = f32[8,100]{1,0} custom-call(%p.1), custom_call_target="core", called_computations={%elsewhere}
}

%body (t: (s32[], f32[8,50])) -> (s32[], f32[8,50]) {
  %t = (s32[], f32[8,50]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8,50]{1,0} get-tuple-element(%t), index=1
  %y = f32[8,50]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum
  %begun = ((f32[8,50]{1,0}), f32[8,100]{1,0}, s32[]) async-start(%y), calls=%on_another_core
  %done = f32[8,100]{1,0} async-done(%begun)
  %beside = f32[8,100]{1,0} fusion(%y), kind=kLoop, calls=%elsewhere
  %core-start = ((), (), s32[]) custom-call-start(), custom_call_target="core", called_computations={%elsewhere}
  %core-done = f32[8,100]{1,0} custom-call-done(%core-start)
  ROOT %r = (s32[], f32[8,50]{1,0}) tuple(%i, %y)
}

%condition (t.1: (s32[], f32[8,50])) -> pred[] {
  %t.1 = (s32[], f32[8,50]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %end = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %end), direction=LT
}

ENTRY %main (s: (s32[], f32[8,50])) -> (s32[], f32[8,50]) {
  %s = (s32[], f32[8,50]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[8,50]{1,0}) while(%s), condition=%condition, body=%body
}
"""


def test_what_another_core_or_a_fusion_exchanges_is_sent_too():
    found = step_exchanges(Program.read(TEXT))
    assert found["link_bytes"] == 2 * 4 * 8 * 50 // 2 + 3 * (4 * 8 * 100 // 2)
    assert [(one["kind"], one["count"]) for one in found["collectives"]] == [("all-gather", 1), ("all-reduce", 1)]
    assert found["collectives_outside_loop"] == []


def test_a_program_without_a_loop_is_refused():
    text = TEXT.replace("while(%s), condition=%condition, body=%body", "copy(%s)")
    with pytest.raises(ValueError, match="decode must have a loop"):
        step_exchanges(Program.read(text))
