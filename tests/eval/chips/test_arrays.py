import pytest

from eval.chips.arrays import read_arrays


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("f32[8,128]{1,0:T(8,128)}", 4096),
        ("f32[81,64]{1,0:T(8,128)}", 88 * 128 * 4),
        ("bf16[8,8,1024,64]{2,3,1,0:T(8,128)(2,1)}", 8 * 8 * 1024 * 64 * 2),
        ("bf16[8,8,1024,64]{3,2,1,0:T(8,128)(2,1)}", 8 * 8 * 1024 * 128 * 2),
        ("bf16[3,64]{1,0:T(2,128)(2,1)S(1)}", 4 * 128 * 2),
        ("s32[5]{0:T(1024)}", 4096),
        ("s32[]{:T(128)}", 512),
        ("f32[7,3]{1,0}", 84),
        ("u4[6]", 3),
    ],
)
def test_tiles_are_filled_up_in_the_order_of_the_layout(text, padded):
    (array,) = read_arrays(text)
    assert array.padded_bytes == padded


def test_arrays_of_a_tuple_are_read_with_their_memories():
    fast, main, host = read_arrays("(bf16[2,64]{1,0:T(8,128)S(1)}, f32[4]{0}, /*index=2*/s8[8,2]{1,0:S(5)})")
    assert [fast.space, main.space, host.space] == [1, 0, 5]
    assert [fast.main_bytes, main.main_bytes, host.main_bytes] == [0, 16, 0]
    assert (str(fast), fast.elements, fast.bytes) == ("bf16[2,64]", 128, 256)
    assert (fast.order, host.order) == ("{1,0:T(8,128)}", "{1,0}")
