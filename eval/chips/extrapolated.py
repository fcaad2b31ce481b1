"""Figures of a whole model from those of two models of few of its layers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eval.chips.ideal import Ideal
from jax_smash.chips import Chip
from jax_smash.shapes import round_up

FEWEST, FURTHER = 2, 2
"""Layers of the smaller of the models that are compiled, and how many more the larger has."""

GROWING = (
    *("total_mb", "argument_mb", "output_mb", "reused_mb", "temp_mb", "code_mb", "body_bytes", "held_bytes"),
    *("link_bytes", "modelled_ms", "cache_copies", "inner_loops"),
)
"""Figures that are a constant and a part for each layer."""


def repeat(kinds: Sequence[Any]) -> int:
    """Returns after how many layers their kinds repeat; the last repeat may be cut."""
    return next(n for n in range(1, len(kinds) + 1) if all(a == b for a, b in zip(kinds, kinds[n:], strict=False)))


def compiled_layers(dense_layers: int = 0, *, every: int = 1, period: int = 1, layers: int = 0) -> tuple[int, int]:
    """Returns the layers of the models that are compiled.

    Both end at the same place of the pattern of layers as the whole model, and so differ by whole repeats.

    Args:
      dense_layers: that a policy reads whole; even the smaller model has another one.
      every: layers that a policy's predictor serves together.
      period: layers after which their kinds repeat; even the smaller model has so many.
      layers: of the whole model; 0 for one of whole repeats.
    """
    whole = math.lcm(every, period)
    cut = layers % whole
    few = round_up(max(FEWEST, dense_layers + 1, period) - cut, whole) + cut
    return few, few + round_up(FURTHER, whole)


def straight(few: float, more: float, layers: int, compiled: tuple[int, int]) -> float:
    """Returns a figure of a model of so many layers, by those of models with `compiled` layers: a + b · layers."""
    each = (more - few) / (compiled[1] - compiled[0])
    return few + each * (layers - compiled[0])


def extrapolated(
    compiled: Mapping[int, Sequence[Mapping[str, Any]]],
    layers: int,
    least: Mapping[str, Ideal],
    chip: Chip | None,
    weights: str,
    memory: int | None,
) -> list[dict[str, Any]]:
    """Returns the figures of each program of a whole model.

    What is least is that of the whole model. The dearest operations and the share of the time that has a schedule are
    those of the larger of the compiled models, as is what is said of single loops and of the host.

    Args:
      compiled: rows of two models by their layers, fewer first, each with the same programs.
      layers: of the whole model.
      least: the least that each program of the whole model does.
      chip: that the programs are compiled for; None for one without a data sheet.
      weights: plain or int8.
      memory: bytes of the device; None where it is not known.
    """
    first, second = compiled
    programs = zip(*compiled.values(), strict=True)
    return [_whole(few, more, layers, (first, second), least, chip, weights, memory) for few, more in programs]


def _whole(
    few: Mapping[str, Any],
    more: Mapping[str, Any],
    layers: int,
    compiled: tuple[int, int],
    least: Mapping[str, Ideal],
    chip: Chip | None,
    weights: str,
    memory: int | None,
) -> dict[str, Any]:
    if not (few["fits"] and more["fits"]):
        return dict(more if few["fits"] else few)
    row = dict(more)
    for name in (name for name in GROWING if name in row):
        row[name] = straight(few[name], more[name], layers, compiled)
    ideal = least[row["program"]]
    row["ideal_bytes"], row["least"] = ideal.bytes, ideal.parts()
    row["traffic"] = (row["body_bytes"] + row["held_bytes"]) / ideal.bytes
    row["copies"] = _copies(few["copies"], more["copies"], layers, compiled)
    row["fits"] = memory is None or row["total_mb"] * 1e6 < memory
    row["compile_s"] = few["compile_s"] + more["compile_s"]
    if chip is not None:
        row["roofline_ms"] = ideal.ms(chip, "s8" if weights == "int8" else "bf16")
    return row


def _copies(
    few: Sequence[Mapping[str, Any]], more: Sequence[Mapping[str, Any]], layers: int, compiled: tuple[int, int]
) -> list[dict[str, Any]]:
    """Returns copies of a kind together: those of the same shape, place and reason."""
    kinds = dict.fromkeys((x["shape"], x["place"], x["reason"]) for x in (*more, *few))
    found = []
    for kind in kinds:
        told = dict(zip(("shape", "place", "reason"), kind, strict=True))
        sums = {}
        for name in ("bytes", "times"):
            in_few, in_more = (
                sum(x[name] for x in copies if (x["shape"], x["place"], x["reason"]) == kind) for copies in (few, more)
            )
            sums[name] = max(0, round(straight(in_few, in_more, layers, compiled)))
        found.append(told | sums)
    return sorted((x for x in found if x["bytes"]), key=lambda x: -x["bytes"])
