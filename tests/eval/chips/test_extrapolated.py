import pytest

from eval.chips.extrapolated import compiled_layers, extrapolated, repeat, straight
from eval.chips.ideal import Ideal
from jax_smash.chips import CHIPS


@pytest.mark.parametrize("dense_layers", [0, 1, 2, 5])
def test_figures_go_on_in_a_straight_line(dense_layers):
    layers = compiled_layers(dense_layers)
    assert layers[0] > dense_layers
    few, more = (7 + 3 * n for n in layers)
    assert straight(few, more, 16, layers) == 7 + 3 * 16
    assert straight(few, more, layers[0], layers) == few


@pytest.mark.parametrize(
    ("kinds", "compiled"),
    [
        ("F" * 27, (2, 4)),
        (("SSSSSF" * 5)[:26], (8, 14)),
        ("SSSF" * 8, (4, 8)),
        ("SF" * 13, (2, 4)),
        (("SF" * 13)[:25], (3, 5)),
    ],
)
def test_compiled_models_end_where_the_whole_does_in_the_pattern_of_its_layers(kinds, compiled):
    period = repeat(kinds)
    assert compiled_layers(period=period, layers=len(kinds)) == compiled
    few, more = (kinds[:n] for n in compiled)
    added, left = more[len(few) :], kinds[len(more) :]
    assert left == (added * len(left))[: len(left)]
    assert {kind: straight(few.count(kind), more.count(kind), len(kinds), compiled) for kind in set(kinds)} == {
        kind: kinds.count(kind) for kind in set(kinds)
    }


def test_compiled_models_have_a_predictors_layers_and_a_repeat_together():
    assert compiled_layers(every=4, period=6, layers=26) == (14, 26)
    assert compiled_layers(1, every=4, layers=14) == (2, 6)
    assert compiled_layers(2, layers=16) == (3, 5)


def row(layers, copies):
    return {
        "program": "decode",
        "fits": True,
        "total_mb": 100.0 + 50 * layers,
        "temp_mb": 1.0,
        "body_bytes": 1000 + 300 * layers,
        "held_bytes": 40,
        "ideal_bytes": 900 + 290 * layers,
        "traffic": 0.0,
        "copies": copies,
        "modelled_ms": 0.5 * layers,
        "roofline_ms": 0.0,
        "compile_s": 1.0,
        "dearest": [f"of {layers}"],
    }


def copy(times, shape="f32[8]", place="loop"):
    return {"shape": shape, "place": place, "times": times, "bytes": 32 * times, "reason": None}


def whole(few, more, memory=10**12):
    least = {"decode": Ideal(weights=5000, operations=7)}
    (found,) = extrapolated({2: [few], 4: [more]}, 16, least, CHIPS["v5e"], "plain", memory)
    return found


def test_a_whole_models_figures_are_made_of_those_of_two():
    few, more = row(2, [copy(1), copy(1)]), row(4, [copy(1)] * 4 + [copy(1, shape="s32[9]")])
    found = whole(few, more)
    assert (found["total_mb"], found["temp_mb"], found["body_bytes"]) == (900, 1, 5800)
    assert found["modelled_ms"] == 8
    assert found["ideal_bytes"] == 5000
    assert found["traffic"] == pytest.approx(5840 / 5000)
    assert found["roofline_ms"] == pytest.approx(1e3 * 5000 / CHIPS["v5e"].bandwidth)
    assert {x["shape"]: x["times"] for x in found["copies"]} == {"f32[8]": 16, "s32[9]": 7}
    assert found["dearest"] == ["of 4"]
    assert found["fits"]
    assert not whole(few, more, memory=899_000_000)["fits"]


def test_a_copy_that_is_made_once_stays_one():
    found = whole(row(2, [copy(1, place="call")]), row(4, [copy(1, place="call")]))
    assert [x["times"] for x in found["copies"]] == [1]


def test_collectives_grow_with_the_bytes_that_devices_send():
    def sums(count, size=0.5, shape="f32[8]"):
        return {"kind": "all-reduce", "shape": shape, "count": count, "megabytes": count * size}

    few, more = (
        row(n, [])
        | {"link_bytes": 1_000_000 * n, "collectives": [sums(1, 2.0, "f32[9]"), sums(n), sums(n)]}
        | {"collectives_outside_loop": [sums(1)]}
        for n in (2, 4)
    )
    found = whole(few, more)
    assert found["link_bytes"] == 16_000_000
    assert found["collectives"] == [sums(32), sums(1, 2.0, "f32[9]")]
    assert found["collectives_outside_loop"] == [sums(1)]


def test_what_does_not_fit_is_told_as_it_is():
    small = {"program": "decode", "fits": False, "why": "memory"}
    assert whole(row(2, []), small) == small
