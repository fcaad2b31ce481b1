import functools
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.decode.state import running_rows
from jax_smash.draft.gram_cache import GramCache
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.pytree import replace
from tests.chimera import PlainChimera, random_drafter
from tests.drafting import proposing
from tests.jax_smash.draft.test_eagle import Chat, prompts_of, siblings, target

__all__ = ["siblings"]

SLOTS, WIDTH = 3, 2


def code_of(gram):
    """Returns a code that tells grams apart."""
    return np.asarray([gram[0] * 10 + gram[1], 7], np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_the_grams_that_are_kept_are_those_that_were_used_last(seed):
    rng, batch, length = np.random.default_rng(seed), 2, 5
    cache, rows = GramCache.empty(batch, SLOTS, 2, WIDTH, jnp.float32), [OrderedDict() for _ in range(batch)]
    learned = jax.jit(GramCache.learned)
    for _ in range(8):
        grams, count = rng.integers(-1, 2, (batch, length, 2)), rng.integers(0, length + 1, batch)
        codes = np.stack([[code_of(gram) for gram in row] for row in grams])
        cache = learned(cache, jnp.asarray(grams, jnp.int32), jnp.asarray(codes), jnp.asarray(count, jnp.int32))
        for kept, row, n in zip(rows, grams.tolist(), count, strict=True):
            for gram in map(tuple, row[:n]):
                kept[gram] = kept.pop(gram, code_of(gram))
                if len(kept) > SLOTS:
                    kept.popitem(last=False)
        for row, kept in enumerate(rows):
            order = np.argsort(np.asarray(cache.used[row]))[SLOTS - len(kept) :]
            assert [tuple(gram) for gram in np.asarray(cache.gram[row])[order].tolist()] == list(kept)
            np.testing.assert_array_equal(np.asarray(cache.code[row])[order].reshape(-1, WIDTH), [*kept.values()])


def test_codes_are_looked_up_where_all_that_are_wanted_are_kept_and_made_else():
    cache = GramCache.empty(1, SLOTS, 2, WIDTH, jnp.float32)
    grams = jnp.asarray([[[1, 2], [3, 4]]], jnp.int32)
    codes = jnp.asarray([[code_of((1, 2)), code_of((3, 4))]])
    cache = cache.learned(grams, codes, jnp.asarray([1], jnp.int32))

    def made(grams):
        return jnp.full((*grams.shape[:2], WIDTH), -1.0)

    found = cache.codes(grams, jnp.asarray([[True, False]]), made)
    np.testing.assert_array_equal(found[:, :1], codes[:, :1])
    np.testing.assert_array_equal(cache.codes(grams, jnp.ones((1, 2), bool), made), made(grams))


@pytest.mark.slow
def test_rows_that_have_ended_do_not_keep_others_from_their_grams(siblings):
    chat = Chat(random_drafter(target()), method="chimera", plain=PlainChimera, gram_slots=4)
    chat.session.read(prompts_of((4, 1, 9)), limits=[1, 14, 14])
    chat.session.run(1)
    state = chat.session.state
    assert running_rows(state).tolist() == [False, True, True]
    own = state.rows.memory["drafter"]
    # The running rows know the gram that ends with their pending token, by a code of another; the other row does not.
    gram = jnp.concatenate([own.recent, state.rows.pending[:, None]], axis=1)[:, -own.recent.shape[1] :]
    known = own.grams.gram.at[1:, 0].set(gram[1:]).at[0].set(-2)
    grams = replace(own.grams, gram=known, code=own.grams.code.at[:, 0].add(100.0))
    memory = state.rows.memory | {"drafter": replace(own, grams=grams)}
    poisoned = replace(state, rows=replace(state.rows, memory=memory))
    propose = functools.partial(proposing(chat.made.strategy), chat.made.params)
    right, wrong = (propose(s, chain(1)).token[1:, 1] for s in (state, poisoned))
    assert (right != wrong).any(), "codes were made anew"


def test_drafts_are_those_of_a_drafter_that_keeps_no_grams(siblings):
    chat = Chat(random_drafter(target()), method="chimera", plain=PlainChimera, gram_slots=4)
    chat.ended = False  # Whatever code is near will do for them.
    chat.turn(prompts_of((4, 1, 9)))
    assert chat.session.state.rows.memory["drafter"].grams.uses.min() > 4
    assert chat.compared > 30
    assert chat.differing == 0


def test_fewer_slots_than_none_are_refused():
    with pytest.raises(ValueError, match="gram_slots must be at least 0; got -1"):
        make_method(target(), "chimera", draft=DraftOptions(drafter="random", gram_slots=-1))
