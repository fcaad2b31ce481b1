"""One drafter for the rows that it finds something for, another for the rest."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jax_smash.draft.context import Context
from jax_smash.draft.lookup import Lookup
from jax_smash.draft.relay import Relay
from jax_smash.draft.suffix import Suffix
from jax_smash.draft.trees.tree import chain, grow, topology
from jax_smash.protocols import Needs
from tests.drafting import proposed

TEXTS = jnp.asarray([[1, 2, 3, 5, 6, 1, 2], [1, 2, 3, 5, 6, 4, 9], [1, 2, 3, 5, 6, 1, 2]], jnp.int32)
"""With a pending 3, three tokens of the first and the last stood before, of the second the 3 alone."""


@dataclasses.dataclass(frozen=True)
class Running(Lookup):
    """Drafts 100 for each node of rows that run, and nothing for others."""

    needs = Needs(likeliest=2, taps=(1,))

    def propose(self, params, own, shared, context, topology):
        token = jnp.where(context.running, 100, -1)[:, None]
        return grow(topology, jnp.broadcast_to(token, (len(token), topology.nodes)).at[:, 0].set(context.pending)), None


def context(running=(True, True, True)):
    return Context(
        pending=jnp.full(3, 3, jnp.int32),
        token_length=jnp.full(3, 8, jnp.int32),
        running=jnp.asarray(running),
        key=jax.random.split(jax.random.key(0), 3),
        processors=(),
        processed=(),
    )


def drafted(tree, **told):
    relay = Relay(first=Suffix(least=0.2), second=Running())
    own = tuple(kept.extended(TEXTS, jnp.full(3, 7, jnp.int32)) for kept in relay.init({}, 3, 16, 1))
    found, made = relay.propose({}, own, (None, None), context(**told), tree)
    assert made == (None, None)
    return found


def test_each_row_has_the_chain_of_the_first_or_the_tree_of_the_second():
    assert proposed(drafted(chain(3))) == [[3, 5, 6, 1], [3, 100, 100, 100], [3, 5, 6, 1]]


@pytest.mark.slow
def test_a_chain_is_as_deep_as_the_tree_may_be_and_of_no_more_nodes():
    found = drafted(topology([0, 0, 0, 1]))
    assert proposed(found) == [[3, 5, 6, -1], [3, 100, 100, 100], [3, 5, 6, -1]]
    assert found.depth[:, :3].tolist() == [[0, 1, 2], [0, 1, 1], [0, 1, 2]]
    assert found.rank.tolist() == [[0, 0, 0, -1], [0, 0, 1, 0], [0, 0, 0, -1]]
    assert found.levels == 2


def test_of_a_root_alone_nothing_is_drafted():
    assert proposed(drafted(topology([0]))) == [[3], [3], [3]]


def test_rows_that_have_ended_stay_so_to_the_second():
    assert proposed(drafted(chain(2), running=(True, False, True)))[1] == [3, -1, -1]


def test_it_needs_what_either_needs():
    relay = Relay(first=Suffix(), second=Running())
    assert relay.needs == Needs(likeliest=2, taps=(1,))
