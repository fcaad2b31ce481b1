import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from jax_smash.draft.trees.tree import grow, topology, tree_of
from jax_smash.draft.verify.accept import accept
from jax_smash.draft.verify.children import draw_independent, draw_without_replacement
from jax_smash.draft.verify.k_seq import KSeq
from jax_smash.draft.verify.rejection import reject
from jax_smash.draft.verify.rules import Independent, WithoutReplacement
from jax_smash.pytree import replace
from jax_smash.sampling import TopK, TopP, choose, row_keys
from tests.goodness import FALSE_ALARM, counted, goodness, joint, keys_of, softmax, speculate, tables, wrong_by

VOCAB = 5
DRAWS = 20_000
CHAIN, SIBLINGS, TREE = (0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 1, 1)
RULES = {
    "independent": (Independent(), draw_independent),
    "without replacement": (WithoutReplacement(), draw_without_replacement),
    "k-seq": (KSeq(), draw_independent),
}
CASES = [("chain", CHAIN, "independent")] + [
    (name, parent, rule) for name, parent in (("siblings", SIBLINGS), ("tree", TREE)) for rule in RULES
]
cases = pytest.mark.parametrize(("parent", "rule"), [case[1:] for case in CASES], ids=lambda x: str(x).replace(" ", ""))
# Of three siblings, what is missing or never emitted is as of the two of the tree.
fewer_cases = pytest.mark.parametrize(
    ("parent", "rule"),
    [pytest.param(*case[1:], marks=pytest.mark.slow if case[0] == "siblings" else ()) for case in CASES],
    ids=lambda x: str(x).replace(" ", ""),
)
every_rule = pytest.mark.parametrize("rule", RULES)
jitted, greedily = jax.jit(reject, static_argnames="rule"), jax.jit(accept)


def run(target, draft, *, parent, rule, claimed=None, valid=None, draw=None, draws=DRAWS):
    """Returns the p-value of three tokens' joint distribution, and how many tokens each row's first step emitted."""
    valid = np.ones((draws, len(parent)), bool) if valid is None else valid
    claimed = softmax(draft) if claimed is None else claimed
    tokens, first = speculate(
        target,
        draft,
        claimed.astype(np.float32),
        keys_of(draws),
        valid,
        parent=parent,
        rule=RULES[rule][0],
        draw=RULES[rule][1] if draw is None else draw,
    )
    return goodness(counted(tokens, len(target)), joint(target)), np.asarray(first)


def truncated(logits, processor):
    path = jnp.zeros((1, len(logits), 0), jnp.int32)
    return np.asarray(processor.apply((), jnp.asarray(logits)[None], path)[0])


@cases
def test_three_tokens_follow_the_target_and_a_proposal_that_is_wrong_by_a_twentieth_is_noticed(parent, rule):
    target, draft = tables(VOCAB, seed=8)
    true = softmax(draft)
    assert run(target, draft, parent=parent, rule=rule)[0] > FALSE_ALARM
    wrong = wrong_by(true, 0.05)
    np.testing.assert_allclose(np.abs(wrong - true).sum(-1) / 2, 0.05)
    assert run(target, draft, parent=parent, rule=rule, claimed=wrong)[0] < FALSE_ALARM


@fewer_cases
def test_a_truncated_target_is_followed_where_the_proposal_is_not_truncated(parent, rule):
    target, draft = tables(VOCAB, seed=1)
    cut = truncated(target, TopK(k=jnp.array([3])))
    assert (np.isinf(cut).sum(1) == 2).all()
    assert run(cut, draft, parent=parent, rule=rule)[0] > FALSE_ALARM
    cut = truncated(target, TopP(p=jnp.array([0.8])))
    assert 0 < np.isinf(cut).sum() < cut.size
    assert run(cut, draft, parent=parent, rule=rule)[0] > FALSE_ALARM
    assert run(cut, draft, parent=parent, rule=rule, claimed=wrong_by(softmax(draft), 0.05))[0] < FALSE_ALARM


@fewer_cases
def test_proposals_that_the_target_cannot_emit_are_refused(parent, rule):
    target, draft = tables(VOCAB, seed=2)
    target[:, :2], draft[:, 2:] = -np.inf, -np.inf
    fit, first = run(target, draft, parent=parent, rule=rule)
    assert fit > FALSE_ALARM
    assert (first == 1).all()
    # In part: tokens 0 and 1 are never emitted, token 4 is never proposed.
    _, draft = tables(VOCAB, seed=2)
    draft[:, 4] = -np.inf
    fit, first = run(target, draft, parent=parent, rule=rule)
    assert fit > FALSE_ALARM
    assert 1 < first.mean() < 2.9


@cases
def test_a_proposal_that_equals_the_target_is_accepted_down_to_a_leaf(parent, rule):
    target, _ = tables(VOCAB, seed=3)
    fit, first = run(target, target, parent=parent, rule=rule)
    assert fit > FALSE_ALARM
    assert (first == {CHAIN: 3, SIBLINGS: 2, TREE: 3}[parent]).mean() > 0.999


@fewer_cases
def test_missing_nodes_change_nothing_of_what_is_emitted(parent, rule):
    target, draft = tables(VOCAB, seed=4)
    valid = np.random.default_rng(0).random((DRAWS, len(parent))) < 0.7
    valid[:, 0] = True
    if rule == "without replacement":
        for elder, node in itertools.combinations(range(1, len(parent)), 2):
            valid[:, node] &= valid[:, elder] | (parent[elder] != parent[node])
    fit, first = run(target, draft, parent=parent, rule=rule, valid=valid)
    assert fit > FALSE_ALARM
    assert (first[~valid[:, 1:].any(1)] == 1).all()
    assert (first > 1).any()


def test_a_vocabulary_of_sixteen_and_a_draft_that_is_sure_of_itself():
    target, draft = tables(16, seed=5)
    fit, first = run(target, draft * 4, parent=SIBLINGS, rule="without replacement", draws=40_000)
    assert fit > FALSE_ALARM
    assert 1.1 < first.mean() < 1.9
    wrong = wrong_by(softmax(draft * 4), 0.05)
    fit, _ = run(target, draft * 4, parent=SIBLINGS, rule="without replacement", claimed=wrong, draws=40_000)
    assert fit < FALSE_ALARM


def test_siblings_that_were_drawn_otherwise_than_the_rule_says_are_noticed():
    target, draft = tables(VOCAB, seed=6)
    draft *= 2
    for rule, draw in (("independent", draw_without_replacement), ("without replacement", draw_independent)):
        assert run(target, draft, parent=SIBLINGS, rule=rule, draw=draw)[0] < FALSE_ALARM


def accepted_independent(p, q, children):
    refused = 1.0
    for _ in range(children):
        left = np.maximum(p - q, 0)
        refused, p = refused * left.sum(), left / left.sum()
    return 1 - refused


def accepted_without_replacement(p, q, children):
    if not children or not q.sum():
        return 0.0
    left = np.maximum(p - q, 0)
    accepted = np.minimum(p, q).sum()
    for token in np.flatnonzero(q > p):
        others = np.where(np.arange(len(q)) == token, 0, q)
        after = accepted_without_replacement(left / left.sum(), others / max(others.sum(), 1e-300), children - 1)
        accepted += (q[token] - p[token]) * after
    return accepted


def accepted_k_seq(p, q, children):
    def beta(rho):
        return np.minimum(q, p / rho).sum()

    rho = optimize.brentq(lambda rho: 1 - (1 - beta(rho)) ** children - rho * beta(rho), 1, children)
    return 1 - (1 - beta(rho)) ** children


@pytest.mark.parametrize(
    ("rule", "expected"),
    list(zip(RULES, (accepted_independent, accepted_without_replacement, accepted_k_seq), strict=True)),
)
def test_a_child_is_kept_as_often_as_the_rule_can_keep_one(rule, expected):
    target, draft = tables(VOCAB)
    probability = expected(softmax(target)[0], softmax(draft)[0], 3)
    _, first = run(target, draft, parent=SIBLINGS, rule=rule)
    assert stats.binomtest(int((first == 2).sum()), DRAWS, probability).pvalue > FALSE_ALARM
    # One child is kept as often as two distributions can agree.
    alone = np.minimum(softmax(target)[0], softmax(draft)[0]).sum()
    assert probability > alone + 0.05
    valid = np.tile([True, True, False, False], (DRAWS, 1))
    _, first = run(target, draft, parent=SIBLINGS, rule=rule, valid=valid)
    assert stats.binomtest(int((first == 2).sum()), DRAWS, alone).pvalue > FALSE_ALARM


@functools.cache
def random_trees(batch=40, nodes=12, vocab_size=6, seed=0):
    """Returns trees of many shapes without two equal siblings, their proposals not always covering their tokens."""
    rng = np.random.default_rng(seed)
    parent, token = np.zeros((2, batch, nodes), np.int32)
    for row in range(batch):
        left = [list(rng.permutation(vocab_size)) for _ in range(nodes)]
        for node in range(1, nodes):
            parent[row, node] = rng.choice([above for above in range(node) if left[above]])
            token[row, node] = left[parent[row, node]].pop()
    valid = rng.random((batch, nodes)) < 0.9
    tree = tree_of(jnp.asarray(token), jnp.asarray(parent), jnp.asarray(valid), levels=nodes - 1)
    proposal = rng.random((batch, nodes, vocab_size)) * (rng.random((batch, nodes, vocab_size)) < 0.7)
    proposal /= np.maximum(proposal.sum(-1, keepdims=True), 1e-9)
    return replace(tree, proposal=jnp.asarray(proposal, jnp.float32))


def certain(target, vocab_size):
    return jnp.where(jax.nn.one_hot(target, vocab_size, dtype=bool), 3.5, -jnp.inf)


@every_rule
def test_a_greedy_row_keeps_what_greedy_verification_keeps(rule):
    tree = random_trees()
    batch, nodes, vocab_size = tree.proposal.shape
    target = jnp.asarray(np.random.default_rng(1).integers(0, vocab_size, (batch, nodes)), jnp.int32)
    length = jnp.arange(batch, dtype=jnp.int32)
    accepted, token = jitted(tree, certain(target, vocab_size), row_keys(range(batch)), length, rule=RULES[rule][0])
    expected = greedily(tree, target)
    np.testing.assert_array_equal(accepted.count, expected.count)
    assert len(np.unique(accepted.count)) > 2
    for row, count in enumerate(np.asarray(expected.count)):
        np.testing.assert_array_equal(accepted.path[row, :count], expected.path[row, :count])
        assert int(token[row]) == int(target[row, int(expected.path[row, count - 1])])


def random_logits(tree, seed=2):
    return jnp.asarray(np.random.default_rng(seed).normal(size=tree.proposal.shape), jnp.float32)


@every_rule
def test_a_row_is_decided_by_its_own_key_and_place_alone(rule):
    tree = random_trees()
    logits, keys, length = random_logits(tree), row_keys(range(40)), jnp.arange(40, dtype=jnp.int32) * 5
    greedy = certain(jnp.argmax(logits, -1), logits.shape[-1])
    mixed = jnp.where((jnp.arange(40) % 3 == 0)[:, None, None], greedy, logits)
    one = functools.partial(jitted, rule=RULES[rule][0])
    together, token = one(tree, mixed, keys, length)
    assert len(np.unique(together.count)) > 2
    for row in range(12):
        own = slice(row, row + 1)
        alone, last = one(jax.tree.map(lambda x, own=own: np.asarray(x)[own], tree), mixed[own], keys[own], length[own])
        count = int(together.count[row])
        assert int(alone.count[0]) == count
        assert int(last[0]) == int(token[row])
        np.testing.assert_array_equal(alone.path[0, :count], together.path[row, :count])


def test_another_place_or_key_decides_anew_and_not_with_the_numbers_of_plain_sampling():
    tree = random_trees()
    flat, keys, length = jnp.zeros_like(tree.proposal), row_keys(range(40)), jnp.full(40, 4, jnp.int32)
    places = [(keys, length), (keys, length + 1), (row_keys(range(40, 80)), length)]
    outcomes = [jitted(tree, flat, *place, rule=Independent()) for place in places]
    for (some, some_token), (other, other_token) in itertools.combinations(outcomes, 2):
        assert (some.count != other.count).any()
        assert (some_token == other_token).mean() < 0.5
    # With no child to try, the token is a draw of its own.
    bare = replace(tree, valid=tree.valid.at[:, 1:].set(False))
    accepted, token = jitted(bare, flat, keys, length, rule=Independent())
    assert (accepted.count == 1).all()
    plain = choose(flat[:, :1], keys, length[:, None], sampled=True)[:, 0]
    assert (token == plain).mean() < 0.5


def test_siblings_are_tried_in_node_order_and_an_invalid_one_never():
    shape = topology([0, 0, 0, 0, 2])
    tree = grow(shape, jnp.array([[0, 4, 4, 4, 1], [0, -1, 4, 4, 1], [0, 3, -1, 4, 1], [0, -1, -1, -1, 1]], jnp.int32))
    tree = replace(tree, proposal=jnp.full((4, 5, 5), 0.2))
    logits = certain(jnp.tile(jnp.array([[4, 0, 1, 2, 3]]), (4, 1)), 5)
    accepted, token = jitted(tree, logits, row_keys(range(4)), jnp.zeros(4, jnp.int32), rule=WithoutReplacement())
    np.testing.assert_array_equal(accepted.count, [2, 3, 2, 1])
    np.testing.assert_array_equal(accepted.path[:, 1], [1, 2, 3, 0])
    np.testing.assert_array_equal(token, [0, 3, 2, 4])


def test_logits_that_are_no_numbers_end_the_walk_of_their_row_alone():
    tree = random_trees()
    logits, keys, length = random_logits(tree), row_keys(range(40)), jnp.zeros(40, jnp.int32)
    whole, token = jitted(tree, logits, keys, length, rule=Independent())
    broken, other = jitted(tree, logits.at[::2].set(jnp.nan), keys, length, rule=Independent())
    assert (whole.count[::2] > 1).any()
    assert (broken.count[::2] == 1).all()
    np.testing.assert_array_equal(broken.count[1::2], whole.count[1::2])
    np.testing.assert_array_equal(other[1::2], token[1::2])


def test_a_tree_without_its_proposal_is_refused():
    tree = grow(topology(CHAIN), jnp.zeros((1, 3), jnp.int32))
    arguments = (jnp.zeros((1, 3, 8)), row_keys([0]), jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match=r"must hold the proposal .* got None"):
        reject(tree, *arguments)
    with pytest.raises(ValueError, match=r"logits' shape \(1, 3, 8\); got \(1, 3, 7\)"):
        reject(replace(tree, proposal=jnp.zeros((1, 3, 7))), *arguments)
