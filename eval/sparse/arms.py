"""Policies at equal bytes: how many slots each may read when what its slots are chosen by counts as well."""

import dataclasses
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import Dense, Selecting, SparseDef, StreamingLLM, named_whole, sparse_step_bytes

CONTROLS = ("oracle", "random", "recency")
"""Policies that no user would run: what they choose by is not counted."""

DENSE, STEPWISE, OWN = "dense", "stepwise", "own"
"""How a prompt is read: at once by all that stands before, by steps of the policy, or as the policy alone can."""

BYTES, SLOTS = "bytes", "slots"


@dataclasses.dataclass(frozen=True)
class Arm:
    """A policy at a budget, or why there is none.

    Attributes:
      name: the policy as it was asked for.
      asked: share of the bytes that dense decoding reads of its cache, 0 … 1.
      policy: with its budget; None where the budget cannot be met.
      slots: that a step reads a KV head at the length, of layers that are not read whole.
      cache, scorer, dense: bytes that a step reads a row: keys and values, what they are chosen by, and keys and values
        of the whole cache.
      predictor: bytes of a trained predictor's weights, which a step reads once for all rows; they do not count.
      unmet: why the budget cannot be met; None where it is.
    """

    name: str
    asked: float
    policy: SparsePolicy | None
    slots: int
    cache: int
    scorer: int
    dense: int
    predictor: int = 0
    unmet: str | None = None

    @property
    def is_control(self) -> bool:
        """Whether what slots are chosen by is left out of the bytes."""
        return self.name.partition(":")[0] in CONTROLS

    @property
    def share(self) -> float:
        """Bytes that are read, as a share of the whole cache's."""
        return (self.cache + self.scorer) / self.dense


def read_policy(text: str, *, protocol: str, page_size: int | None) -> SparsePolicy:
    """Returns the policy that a text names, its budget still to be settled.

    Args:
      text: as of `jax-smash generate --sparse`.
      protocol: how it reads prompts.
      page_size: consecutive slots that are chosen together; None for the policy's own. Policies that choose no slots,
        dense and streaming, ignore it.

    Raises:
      ValueError: there is no such policy, or the text says what other options do.
    """
    settings = text.partition(":")[2].replace(",", ":").split(":")
    for setting in settings:
        name = setting.partition("=")[0]
        if name in ("prompt", "budget", "slots", "page_size", "pays_from") and "=" in setting:
            raise ValueError(f"{text!r} must not say {name}: here options say it for all policies, or nothing does")
    policy = named_whole(text)
    if isinstance(policy, StreamingLLM):  # As few slots as it can keep, so that it goes with every model.
        return dataclasses.replace(policy, slots=policy.sinks + 1)
    if not isinstance(policy, Selecting):
        return policy
    pages = {} if page_size is None else {"page_size": page_size}
    return dataclasses.replace(policy, prompt=protocol, **pages)


def policy_of(model: Model) -> SparsePolicy:
    """Returns the policy of a model from `sparsified`, with the sizes of its predictor where it has one."""
    assert isinstance(model.definition, SparseDef)
    return model.definition.policy


def beside(model: Model, policy: SparsePolicy) -> Model:
    """Returns a model whose cache is read by another policy of the same kind, whatever predictor it has.

    Args:
      model: from `sparsified`.
      policy: in place of the model's, such as the same one with another budget.
    """
    assert isinstance(model.definition, SparseDef)
    return dataclasses.replace(model, definition=dataclasses.replace(model.definition, policy=policy))


def settled(
    name: str,
    policy: SparsePolicy,
    config: ModelConfig,
    params: Any,
    *,
    share: float,
    length: int,
    held: int | None = None,
    equal: str = BYTES,
    fixed: bool = False,
) -> Arm:
    """Returns a policy with as many slots as its share of bytes lets it read.

    cache bytes + scorer bytes ≤ share · bytes of the whole cache, in a row of `length` slots

    Layers that a policy reads whole are paid for. A control's own scoring is not. StreamingLLM keeps as many slots
    however short a text is, and others a share of what a row holds. So that it reads no more than they do, its slots
    are that share of what a row holds when an answer begins; where texts begin with nothing, others keep as many too.

    Args:
      name: of the policy, as it was asked for.
      policy: from `read_policy`; one with a trained predictor as `sparsified` has it, for its sizes.
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      share: of the bytes, over 0 and at most 1; from 1 on everything is read.
      length: slots that a row holds, where bytes are counted.
      held: slots that it holds when an answer begins; None for `length`.
      equal: `bytes`; `slots` gives every policy the share of the slots, whatever its scorer reads.
      fixed: shorter texts may read as many slots too; else the same share of theirs.
    """
    counted = Arm(name, share, policy, length, 0, 0, 0)

    def arm(found: SparsePolicy, slots: int) -> Arm:
        read = sparse_step_bytes(config, params, found, batch=1, slots=length)
        scorer = 0 if counted.is_control else read.scorer
        return dataclasses.replace(
            counted,
            policy=found,
            slots=slots,
            cache=read.cache,
            scorer=scorer,
            dense=read.dense_cache,
            predictor=read.predictor,
        )

    if isinstance(policy, Dense) or share >= 1:
        return arm(Dense() if isinstance(policy, StreamingLLM) else policy, length)
    if isinstance(policy, StreamingLLM):
        slots = int(share * (length if held is None else held) + 1e-9)
        if slots <= policy.sinks:
            return _unmet(arm(Dense(), 0), f"its {policy.sinks} sinks and an entry are more than {slots} slots")
        return arm(dataclasses.replace(policy, slots=slots), slots)
    if not isinstance(policy, Selecting):
        raise ValueError(f"{name} must be a policy with a budget; got {type(policy).__name__}")
    size, most = policy.page_size, int(share * length + 1e-9)
    low, high = -(-policy.least // size), most // size
    if policy.head_shares is not None:  # A head with the whole of a budget reads more than the mean.
        shares = [one for layer in policy.head_shares for one in layer]
        high = min(length - 1, int(most * len(shares) / sum(shares))) // size
    if low > high:
        reason = f"it always reads {policy.least} slots, more than {most} of {length}"
        return _unmet(arm(Dense(), 0), reason)

    def with_pages(pages: int) -> Arm:
        slots = pages * size
        # A little less than the slots, so that their share of the length is not rounded up to one more. It is more than
        # an error of float32, in which a step multiplies, and too little to lose a slot of most shorter texts.
        budget = slots if fixed else (slots - max(1e-3, 4e-7 * slots)) / length
        return arm(dataclasses.replace(policy, budget=budget), slots)

    if equal == SLOTS:
        return with_pages(high)
    least = with_pages(low)
    if least.share > share:
        return _unmet(least, f"with {least.slots} slots it reads {least.share:.1%}, {_told(least)}")
    while low < high:
        middle = (low + high + 1) // 2
        if with_pages(middle).share <= share:
            low = middle
        else:
            high = middle - 1
    return with_pages(low)


def _unmet(arm: Arm, reason: str) -> Arm:
    return dataclasses.replace(arm, policy=None, unmet=reason)


def _told(arm: Arm) -> str:
    return f"{arm.scorer / arm.dense:.1%} to choose by and {arm.cache / arm.dense:.1%} of keys and values"
