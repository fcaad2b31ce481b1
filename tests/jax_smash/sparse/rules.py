"""Each policy's rule as its paper has it: slow, NumPy, float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.sparse import (
    H2O,
    TOVA,
    Butler,
    GroupedButler,
    LowRankKeys,
    Oracle,
    PageGate,
    Quest,
    Random,
    Recency,
    SnapKV,
    TokenSelect,
)
from tests.jax_smash.sparse.whole_rows import whole_rows


def softmax(scores, seen):
    """Returns probabilities of what is seen; 0 for all where nothing is."""
    highest = scores.max(initial=-1e300, where=seen, axis=-1, keepdims=True)
    weights = np.exp(np.where(seen, scores - highest, -np.inf))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


class Rule:
    """One row's choice in one layer. Slots are numbered as they are committed.

    Attributes:
      alive: [K, L], False at what was evicted.
    """

    evicts = False

    def __init__(self, policy, layer, kv_heads, scale):
        self.policy, self.layer, self.scale = policy, layer, scale
        self.alive = np.ones((kv_heads, 0), bool)

    def probabilities(self, query, keys, alive):
        """Returns what one query [N, H] attends to of keys [L, K, H]: [K, G, L], zeros at what is gone."""
        grouped = query.reshape(len(alive), -1, query.shape[-1])
        scores = np.einsum("KGH,LKH->KGL", grouped, keys) * self.scale
        return softmax(scores, alive[:, None])

    def share(self, head):
        shares = self.policy.head_shares
        return np.float32(1.0 if shares is None else shares[self.layer][head])

    def limit(self, filled):
        budget = self.policy.budget
        if isinstance(budget, float):
            budget = max(int(np.ceil(np.float32(filled) * np.float32(budget))), self.policy.least)
        return budget

    def window(self, limit):
        return self.policy.window

    def choose(self, query, keys):
        """Returns the slots that are read: [K, L]."""
        if not len(keys):
            return self.alive
        scores, filled, size = self.scores(query, keys), len(keys), self.policy.page_size
        limit, slot = self.limit(filled), np.arange(filled)
        self.ranked = []
        always = (slot < self.policy.sinks) | (slot >= filled - self.window(limit))
        if size > 1 and self.policy.newest_page:
            always |= slot // size == (filled - 1) // size
        chosen = np.zeros_like(self.alive)
        for head, of_head in enumerate(scores):
            rank = np.where(always, np.inf, of_head)
            rank[~self.alive[head]] = -np.inf
            pages = [rank[i : i + size].max() for i in range(0, filled, size)]
            order = np.argsort([-page for page in pages], kind="stable")
            best = order[: max(int(np.ceil(np.float32(limit) * self.share(head))), self.policy.least) // size]
            self.ranked.append((np.asarray(pages), pages[best[-1]]))
            kept = [page for page in best if pages[page] > -np.inf]
            chosen[head] = np.isin(slot // size, kept) & self.alive[head]
        return chosen

    def commit(self, chosen, rows, queries, keys, prompt):
        """Learns of the entries that were kept: their probabilities [N, L after], and their queries [N, H]."""
        new = np.ones((len(self.alive), len(keys) - self.alive.shape[1]), bool)
        old = self.alive if chosen is None or not self.policy.evicts else self.alive & chosen
        self.alive = np.concatenate([old, new], axis=1)
        self.learn(rows, queries, keys, prompt)

    def learn(self, rows, queries, keys, prompt):
        pass


class RecencyRule(Rule):
    def scores(self, query, keys):
        return np.broadcast_to(np.arange(len(keys), dtype=float), self.alive.shape).copy()


class RandomRule(Rule):
    slots = 0

    def scores(self, query, keys):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.policy.seed), self.layer), len(keys))
        heads = [jax.random.fold_in(key, head) for head in range(len(self.alive))]
        return np.stack([np.asarray(jax.random.uniform(head, (len(keys),), jnp.float32), float) for head in heads])


class OracleRule(Rule):
    def scores(self, query, keys):
        return self.probabilities(query, keys, self.alive).sum(1)


class H2ORule(Rule):
    sums = 0.0

    def window(self, limit):
        return max(int(np.floor(limit * self.policy.recent)), self.policy.grace)

    def scores(self, query, keys):
        return self.sums.copy()

    def learn(self, rows, queries, keys, prompt):
        held = self.sums if np.ndim(self.sums) else np.zeros((len(self.alive), 0))
        held = np.pad(held, ((0, 0), (0, len(keys) - held.shape[1])))
        for row in rows:
            held = held * self.policy.decay + row.reshape(len(held), -1, len(keys)).sum(1)
        self.sums = held


class TOVARule(Rule):
    last = None

    def scores(self, query, keys):
        return np.broadcast_to(self.last, self.alive.shape).copy()

    def learn(self, rows, queries, keys, prompt):
        self.last = rows[-1].mean(0)


class SnapKVRule(Rule):
    queries, votes, kept = (), None, 0

    def scores(self, query, keys):
        placed = np.arange(len(keys)) >= self.kept
        votes = np.pad(self.votes, ((0, 0), (0, len(keys) - self.votes.shape[1])))
        return np.where(placed, 2.0 + np.arange(len(keys)), votes)

    def learn(self, rows, queries, keys, prompt):
        policy = self.policy
        if not prompt and not policy.rolling:
            return
        first = len(keys) - len(queries)
        self.queries = [*self.queries, *((first + i, q) for i, q in enumerate(queries))][-policy.observers :]
        self.kept = len(keys) if policy.rolling else max(len(keys) - policy.observers, 0)
        votes = np.zeros(self.alive.shape)
        for place, query in self.queries:
            seen = self.alive & (np.arange(len(keys)) <= place)
            votes += self.probabilities(query, keys, seen).mean(1) / policy.observers
        votes[:, self.kept :] = 0
        side = policy.pool // 2
        near = np.stack([np.pad(votes, ((0, 0), (side, side)))[:, i : i + len(keys)] for i in range(policy.pool)])
        self.votes = near.mean(0) if policy.pooling == "average" else near.max(0)


class QuestRule(Rule):
    def limit(self, filled):
        return max(self.policy.budget, 3 * self.policy.page_size)

    def scores(self, query, keys):
        size, grouped = self.policy.page_size, query.reshape(len(self.alive), -1, query.shape[-1])
        scores = np.zeros(self.alive.shape)
        for i in range(0, len(keys), size):
            low, high = keys[i : i + size].min(0)[:, None], keys[i : i + size].max(0)[:, None]
            scores[:, i : i + size] = np.maximum(grouped * low, grouped * high).sum(-1).max(-1)[:, None]
        return scores


class TokenSelectRule(Rule):
    last, middle, since, made = None, None, 0, None

    def scores(self, query, keys):
        flat = query.reshape(-1)
        cosine = -1 if self.last is None else flat @ self.last / np.linalg.norm(flat) / np.linalg.norm(self.last)
        slot = np.arange(len(keys))
        if cosine > self.policy.cosine:
            newer = np.where(slot >= self.since, slot / 1e6, -np.inf)
            scores, self.made = np.where(np.isin(slot, self.middle), 1.0, newer), None
        else:
            scores, self.made = self.probabilities(query, keys, self.alive).sum((0, 1)), flat
        return np.broadcast_to(scores, self.alive.shape).copy()

    def choose(self, query, keys):
        chosen, slot = super().choose(query, keys), np.arange(len(keys))
        self.latest = len(keys) - self.policy.window
        self.between = slot[chosen[0] & (slot >= self.policy.sinks) & (slot < self.latest)]
        return chosen

    def learn(self, rows, queries, keys, prompt):
        if self.made is not None:
            self.last, self.middle, self.since, self.made = self.made, self.between, self.latest, None


class LearnedRule(Rule):
    """Scores what a predictor makes of the whole text so far, read anew from its first entry at every step.

    Attributes:
      base: that made the text.
      predictor: its modules; None for random ones.
      slots: of a row that is read whole.
      taps: for each layer the residuals of the committed entries, and that of the root where it is known.
    """

    base, predictor, slots, taps, made, left = None, None, 0, None, 0, 0

    @functools.cached_property
    def last(self):
        return np.zeros((len(self.alive), 0))  # Scores of a step that had nothing to choose from.

    def predicted(self, filled):
        """Returns queries of the root [n, d], and keys [S, k, d], by the form that training reads whole rows with."""
        taps = tuple(np.pad(x, ((0, self.slots - len(x)), (0, 0)))[None] for x in self.taps)
        predictor = self.policy.predictor if self.predictor is None else self.predictor
        queries, keys = whole_rows(self.base, predictor, self.layer, jax.tree.map(jnp.float32, taps))
        asking = filled - self.policy.predictor.look_ahead
        asked = np.asarray(queries[max(asking, 0)], float) * (asking >= 0)
        return asked, np.asarray(keys, float)

    def scores(self, query, keys):
        filled, size = len(keys), self.policy.page_size if isinstance(self.policy, PageGate) else 1
        if self.left:
            came = np.arange(filled) // size >= self.made // size
            old = np.pad(self.last, ((0, 0), (0, filled - self.last.shape[1])))
            return np.where(came, 1e30, old)
        self.last, self.made = self.fresh(filled), filled
        return self.last.copy()

    def learn(self, rows, queries, keys, prompt):
        self.left = 0 if prompt else (self.left or self.policy.refresh) - 1


class ButlerRule(LearnedRule):
    def fresh(self, filled):
        asked, keys = self.predicted(filled)
        found = np.einsum("ND,LND->NL", asked, keys[:filled]) / np.sqrt(asked.shape[-1])
        return softmax(found, np.ones_like(found, bool)).reshape(len(self.alive), -1, filled).sum(1)


FLOAT32_KEYS = 1e-4
"""How far a key that float32 layers made may be from one of float64 layers, as a share of its largest number."""


class ProjectedRule(LearnedRule):
    """Scores by projected keys, in a byte or half a byte a number where the policy keeps them so.

    Attributes:
      kept: such keys [L, K, d] and their scales [L, K, 1] of a cache, which are taken where they round this rule's
        own keys to a nearest number; None to round here. Halfway between two numbers the last bit of a float decides.
    """

    kept = None

    def fresh(self, filled):
        asked, keys = self.predicted(filled)
        keys = keys[:filled]
        if self.policy.int8 or self.policy.int4:
            keys = self.rounded(keys)
        asked = asked.reshape(len(self.alive), -1, asked.shape[-1])
        found = np.einsum("KGD,LKD->KGL", asked, keys) / np.sqrt(asked.shape[-1])
        return found.max(1) if self.policy.heads == "max" else softmax(found, np.ones_like(found, bool)).sum(1)

    def rounded(self, keys):
        most = 7 if self.policy.int4 else 127
        scale = np.maximum(np.abs(keys).max(-1, keepdims=True), 1e-30) / most
        if self.policy.int4:
            scale = scale.astype(jnp.bfloat16).astype(float)
        if self.kept is None:
            return np.clip(np.round(keys / scale), -most, most) * scale
        values, scales = self.kept
        # The last bit of a float may decide how a scale is rounded to bfloat16, too.
        np.testing.assert_allclose(scales, scale, rtol=2.0**-7 if self.policy.int4 else FLOAT32_KEYS)
        own = np.clip(keys / (scales if self.policy.int4 else scale), -most, most)
        assert np.abs(values - own).max() <= 0.5 + most * FLOAT32_KEYS, "a kept key must be a nearest number"
        return values * scales


class GateRule(LearnedRule):
    def scores(self, query, keys):
        scores, size = super().scores(query, keys), self.policy.page_size
        pages = scores[:, ::size]
        scored = (pages > -np.inf) & (pages < 1e30)
        likely = softmax(pages, scored)
        first = np.arange(pages.shape[1]) * size
        always = (first < self.policy.sinks) | (first + size > len(keys) - 1)
        for head, of_head in enumerate(likely):
            reached = 0.0
            for page in np.argsort(-(of_head + always), kind="stable"):
                if reached >= self.policy.top_p and scored[head, page]:
                    scores[head, page * size : (page + 1) * size] = -np.inf
                reached += of_head[page]
        return scores

    def fresh(self, filled):
        asked, keys = self.predicted(filled)
        size = self.policy.page_size
        full = filled // size
        found = np.einsum("KD,PKD->KP", asked, keys[:full]) / np.sqrt(asked.shape[-1])
        scores = np.full((len(self.alive), filled), -np.inf)
        scores[:, : full * size] = np.repeat(found, size, axis=1)
        return scores


RULES = {
    Butler: ButlerRule,
    GroupedButler: ProjectedRule,
    LowRankKeys: ProjectedRule,
    PageGate: GateRule,
    Recency: RecencyRule,
    Random: RandomRule,
    Oracle: OracleRule,
    H2O: H2ORule,
    TOVA: TOVARule,
    SnapKV: SnapKVRule,
    Quest: QuestRule,
    TokenSelect: TokenSelectRule,
}
