import io

import matplotlib.image
import numpy as np
import pytest

from eval.chips.tree_times import node_counts, tree_times
from eval.chips.tree_times_plot import plot_tree_times
from eval.compile import Settings


def compiled(seen):
    """Returns what stands in for compiling: a step takes a millisecond and one more for each eight nodes."""

    def rows(settings):
        seen.append(settings)
        nodes = 1 if settings.method == "ar" else int(settings.tree.removeprefix("tree-")) + 1
        figures = {"roofline_ms": 1.0, "body_bytes": 3, "ideal_bytes": 2, "traffic": 1.5}
        return [{"program": "decode", "fits": True, "modelled_ms": 1 + nodes // 8} | figures]

    return rows


def test_times_are_over_those_of_plain_decoding_of_the_same_chip_and_batch():
    seen = []
    asked = Settings("llama-3.2-1b", chips=("v5e:1x1", "v6e:1x1"), batch_sizes=(1, 8), tree_sizes=(16, 8))
    found = tree_times(asked, compiled(seen))
    assert [(x["chip"], x["batch_size"], x["nodes"]) for x in found] == [
        (chip, batch, nodes) for chip in ("v5e:1x1", "v6e:1x1") for batch in (1, 8) for nodes in (1, 8, 16)
    ]
    assert [x["ratio"] for x in found[:3]] == [1, 2, 3]
    assert [(x.method, x.tree) for x in seen[:3]] == [("ar", "auto"), ("recycling", "tree-7"), ("recycling", "tree-15")]
    assert all(x.programs == ("decode",) for x in seen)


def test_the_trees_are_those_of_the_method_that_is_asked_for():
    seen = []
    tree_times(Settings("llama-3.2-1b", method="hybrid", tree="tree-3", tree_sizes=(4,)), compiled(seen))
    assert [x.method for x in seen] == ["ar", "hybrid"]


def test_where_larger_trees_do_not_fit_the_others_of_a_batch_are_kept_and_drawn(capsys):
    seen = []

    def rows(settings):
        (row,) = compiled(seen)(settings)
        nodes = 1 if settings.method == "ar" else int(settings.tree.removeprefix("tree-")) + 1
        fits = nodes <= {1: 16, 8: 8, 64: 0}[settings.batch_size]
        return [row if fits else {"program": "decode", "fits": False}]

    found = tree_times(Settings("llama-3.2-1b", batch_sizes=(1, 8, 64), tree_sizes=(8, 16, 32)), rows)
    assert [(x["batch_size"], x["nodes"]) for x in found] == [(1, 1), (1, 8), (1, 16), (8, 1), (8, 8)]
    assert len(seen) == 4 + 3 + 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"decode does not fit v5e:1x1 with {batch} rows and {nodes} nodes; larger trees are left out too"
        for batch, nodes in ((1, 32), (8, 16), (64, 1))
    ]
    picture(found)


def test_where_no_step_fits_it_is_an_error():
    with pytest.raises(ValueError, match="does not fit v5e:1x1 with 1 rows and 1 nodes"):
        tree_times(Settings("llama-3.2-1b", tree_sizes=(2,)), lambda _: [{"program": "decode", "fits": False}])


def test_a_tree_has_a_node():
    assert node_counts((8, 2, 8)) == [1, 2, 8]
    with pytest.raises(ValueError, match="at least 1"):
        node_counts((0,))


def picture(found):
    image = matplotlib.image.imread(io.BytesIO(plot_tree_times(found, title="t")))
    assert np.ptp(image[..., :3]) > 0.5
    return image


def test_every_chip_has_a_panel_and_every_batch_a_line():
    asked = Settings("llama-3.2-1b", chips=("v5e:1x1", "v6e:1x1"), batch_sizes=(1, 8), tree_sizes=(16, 8))
    found = tree_times(asked, compiled([]))
    both, one = picture(found), picture([x for x in found if x["chip"] == "v5e:1x1"])
    assert both.shape[1] > one.shape[1]
    fewer = picture([x for x in found if x["batch_size"] == 1])
    assert fewer.shape == both.shape
    assert (fewer != both).any()
