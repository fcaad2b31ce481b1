"""Drafting by a part of the target's own cache, and what it needs to run for a model."""

import dataclasses
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.self_sparse import SelfSparse
from jax_smash.draft.trees.templates import RANKS
from jax_smash.ladder import Reach, make_ladder
from jax_smash.loading import Model, quantised
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted, width_and_room
from jax_smash.methods.method import Method, Setup
from jax_smash.models.predictors import with_predictor, without_predictor
from jax_smash.plan import step_bytes
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import has_int8
from jax_smash.sparse import Quest, Selecting, named_policy, paying, self_drafting, sparse_step_bytes

NAME = "self-sparse"

POLICY = Quest(budget=0.25)
"""Chooses what drafts read where no policy is named."""

CHAIN = Reach(ranks=1, levels=7, first=0.85, deeper=0.85)
"""A model mostly says by a part of its cache what it says by the whole, so that a second choice seldom helps."""

TREE = dataclasses.replace(CHAIN, ranks=RANKS)
"""The reach of trees that are asked for."""


def own_policy(config: ModelConfig) -> Quest:
    """Returns what chooses where no policy is named: `POLICY`, with fewer dense layers where else none would choose."""
    return dataclasses.replace(POLICY, dense_layers=min(POLICY.dense_layers, config.num_layers - 1))


def self_sparse(setup: Setup) -> Method:
    """Makes the method for a model: the policy of its drafts, their weights, and trees that pay."""
    model, draft, policy = setup.model, setup.draft, _policy(setup)
    checks, drafts = self_drafting(model, policy)
    params = checks.params["target"] if draft.draft_model is None else _rounded(model, checks)
    idle = draft.tree == "auto" and draft.draft_model is None and _reads_all(drafts.policy, model, setup.slots)
    ladder = make_ladder(
        model,
        "off" if idle else draft.tree,
        method=NAME,
        reach=CHAIN if draft.tree == "auto" else TREE,
        batch=setup.batch,
        slots=setup.slots,
        sampled=setup.sampled,
        steps=f"{policy} {draft.draft_model} {setup.log_probs}",
        drafting=_plain_steps(model, params, drafts.policy, batch=setup.batch, slots=setup.slots),
    )
    if idle:
        ladder = dataclasses.replace(ladder, source="drafts would read the whole of so short a text, as checks do")
    width, room = width_and_room(ladder, model)
    draws = DRAWS.get(draft.verify, Draws.COUPLED)
    drafter = SelfSparse(model=drafts, width=width, room=room, draws=draws, sampled=setup.sampled)
    method = drafted(NAME, dataclasses.replace(setup, model=checks), drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": params})


def _policy(setup: Setup) -> SparsePolicy:
    """Returns the policy that is given, or the method's own, by which short texts are read whole."""
    given, model = setup.draft.sparse, setup.model
    if given is not None:
        return named_policy(given) if isinstance(given, str) else given
    return POLICY if model.config is None else paying(own_policy(model.config), model, batch=setup.batch)


def _reads_all(policy: SparsePolicy, model: Model, slots: int) -> bool:
    """Whether drafts read whole caches of so many slots in every layer."""
    return isinstance(policy, Selecting) and model.config is not None and not any(policy.plans(model.config, slots))


def _rounded(model: Model, checks: Model) -> Any:
    """Returns the target's weights in int8, and those of its policy's predictor as they are.

    Raises:
      ValueError: they are already.
    """
    if has_int8(model.params["target"]):
        raise ValueError(
            f"draft-model: int8 drafts with a copy in int8, and the weights of {model.name} are int8 already"
        )
    _, predictor = without_predictor(checks.params["target"])
    base = quantised(model).params["target"]
    return base if predictor is None else with_predictor(base, predictor)


def _plain_steps(model: Model, params: Any, policy: SparsePolicy, *, batch: int, slots: int) -> float:
    """Returns how many plain steps a drafted level takes, by the bytes that each reads."""
    config: Any = model.config
    plain = step_bytes(config, model.params["target"], batch=batch, slots=slots)
    return sparse_step_bytes(config, params, policy, batch=batch, slots=slots).total / plain.total
