import pytest

from jax_smash.draft.trees.confident import Confident, confident


def test_a_name_gives_the_sizes_and_the_papers_otherwise():
    assert confident("confident-60") == Confident(60, depth=6, width=10, chain=True)
    assert confident("confident-8:depth=4,width=3,chain=false") == Confident(8, depth=4, width=3, chain=False)
    assert confident("confident-8:least=0.05") == Confident(8, least=0.05)
    assert confident("chain-4:least=.1") == Confident(4, depth=4, width=1, least=0.1)
    assert confident("tree-15") is None
    assert confident("chain-4") is None


def test_what_stands_for_the_shape_has_as_many_nodes_and_levels():
    for sizes in (Confident(60), Confident(4), Confident(3, depth=1, width=3)):
        topology = sizes.topology
        assert (topology.nodes, topology.levels) == (sizes.nodes + 1, min(sizes.depth, sizes.nodes))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("confident-", "tree confident-N must have a number of nodes, as in confident-60; got 'confident-'"),
        ("confident-0", "nodes must be at least 1; got 0"),
        ("confident-9:depth=0", "depth must be at least 1; got 0"),
        ("confident-9:width=0", "width must be at least 1; got 0"),
        (
            "confident-9:depth=x",
            "settings of confident-N are depth=N, width=N, chain=true or false and least=P; got 'depth=x'",
        ),
        ("confident-9:least=1", "got 'least=1'"),
        ("confident-9:least=0.5", "least must be from 0 to 1/3; got 0.5"),
        ("chain-3:least=.4", "least must be from 0 to 1/3; got 0.4"),
        ("chain-0:least=.1", "nodes must be at least 1; got 0"),
        ("confident-9:top=3", "got 'top=3'"),
        ("confident-9:chain=1", "got 'chain=1'"),
        ("confident-22:depth=3,width=3", "a tree of depth 3 and width 3 has at most 21 nodes; got 22"),
    ],
)
def test_a_name_that_gives_no_sizes_is_refused(name, said):
    with pytest.raises(ValueError, match=said):
        confident(name)
