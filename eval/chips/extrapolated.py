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

LISTED = {
    "copies": (("shape", "place", "reason"), ("bytes", "times")),
    "collectives": (("kind", "shape"), ("megabytes", "count")),
    "collectives_outside_loop": (("kind", "shape"), ("megabytes", "count")),
}
"""Lists whose entries of a kind are such figures: fields in which they are alike, and those that grow, size first."""


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

    What is least is that of the whole model. Copies and collectives are continued by kind. The dearest operations and
    the share of the time that has a schedule are those of the larger of the compiled models, as is what is said of
    single loops and of the host.

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
    for name, (kind, parts) in LISTED.items():
        if name in row:
            row[name] = _listed(few[name], more[name], kind, parts, layers, compiled)
    row["fits"] = memory is None or row["total_mb"] * 1e6 < memory
    row["compile_s"] = few["compile_s"] + more["compile_s"]
    if chip is not None:
        row["roofline_ms"] = ideal.ms(chip, "s8" if weights == "int8" else "bf16")
    return row


def _listed(
    few: Sequence[Mapping[str, Any]],
    more: Sequence[Mapping[str, Any]],
    kind: Sequence[str],
    parts: Sequence[str],
    layers: int,
    compiled: tuple[int, int],
) -> list[dict[str, Any]]:
    """Returns entries that are alike together, the largest first.

    Args:
      few, more: entries of the compiled models.
      kind: fields in which they are alike.
      parts: fields that are continued, the size first.
      layers, compiled: as of `straight`.
    """
    sums: dict[tuple[Any, ...], Any] = {}
    for i, entries in enumerate((few, more)):
        for x in entries:
            sides = sums.setdefault(tuple(x[name] for name in kind), {name: [0, 0] for name in parts})
            for name in parts:
                sides[name][i] += x[name]
    found = []
    for key, sides in sums.items():
        whole = {name: max(0, straight(sides[name][0], sides[name][1], layers, compiled)) for name in parts}
        counted = {name: value if name == "megabytes" else round(value) for name, value in whole.items()}
        found.append(dict(zip(kind, key, strict=True)) | counted)
    return sorted((x for x in found if x[parts[0]]), key=lambda x: -x[parts[0]])
