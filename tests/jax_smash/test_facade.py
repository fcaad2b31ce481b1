import inspect
import re
import subprocess
import sys

import pytest

import jax_smash

SHAPES = {
    "accept": ["B M"],
    "attend": ["B Q N H", "B T K H", "B T"],
    "choose": ["B M V", "B M", "B"],
    "reject": ["B M V", "B"],
    "row_keys": ["B"],
    "grow_tree": ["B M"],
    "tree_by_row": ["B M"],
    "Block": ["B T", "B T W"],
    "KVCache": ["B K _ H", "B"],
    "DraftTree": ["B M", "B M W", "B M V"],
    "Topology": ["M", "M W"],
    "Accepted": ["B P", "B"],
    "Forward": ["B T D"],
    "CausalLM": ["B T", "B T D", "*batch V"],
    "LogitsProcessor": ["B M V", "B T", "B M P"],
    "from_apply": ["B, T", "B, T, V"],
    "generate": ["B, T"],
}
"""Public names that take or return arrays, and shapes of theirs."""


@pytest.mark.parametrize("name", jax_smash.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(jax_smash, name)
    assert name in dir(jax_smash)
    if not isinstance(thing, dict):
        said = inspect.getdoc(thing)
        assert said
        assert not said.startswith(f"{name}("), "a dataclass without a docstring of its own"


@pytest.mark.parametrize("name", SHAPES)
def test_what_takes_arrays_says_their_shapes(name):
    thing = getattr(jax_smash, name)
    said = f"{inspect.getsource(thing)}{inspect.getdoc(thing)}"
    for shape in SHAPES[name]:
        assert re.search(rf"[\[\"]{re.escape(shape)}[\"\]]", said), f"{name} names no [{shape}]"


def test_the_table_for_type_checkers_names_what_is_exported():
    source = inspect.getsource(jax_smash)
    named = source.split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]
    given = {
        part.strip().split(" as ")[-1] for line in named.splitlines() for part in line.split(" import ")[1].split(",")
    }
    assert given == set(jax_smash.__all__)


def test_importing_the_package_imports_no_jax():
    code = "import sys, jax_smash; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="module 'jax_smash' has no attribute 'chain'"):
        jax_smash.chain  # noqa: B018


def test_trees_of_the_facade_are_verified_by_the_facade():
    """What own code would do: grow a tree, choose, accept."""
    import jax.numpy as jnp

    topology = jax_smash.tree_from_ranks([[0], [1], [1, 0]])
    tree = jax_smash.grow_tree(topology, jnp.asarray([[7, 3, 4, 5]], jnp.int32))
    logits = jnp.zeros((1, 4, 9)).at[0, jnp.arange(4), jnp.asarray([4, 1, 5, 2])].set(1.0)
    target = jax_smash.choose(logits, jax_smash.row_keys([0]), jnp.zeros((1, 4), jnp.int32), sampled=False)
    accepted = jax_smash.accept(tree, target)
    assert int(accepted.count[0]) == 3
    assert accepted.path[0, :3].tolist() == [0, 2, 3]
    assert jax_smash.chain_tree(3).parent.tolist() == jax_smash.tree_from_parents([0, 0, 1, 2]).parent.tolist()
    assert jax_smash.named_tree("chain-3").nodes == 4
