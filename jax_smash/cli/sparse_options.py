"""Options of sparse caches: `--sparse NAME --kv-budget 512|25% --page-size N`."""

import dataclasses
from typing import Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError

SELF_SPARSE = "self-sparse"
"""The method that reads a part of the cache to draft, and all of it to check."""

AUTO = "auto"


def _flag(metavar: str, hint: str = "") -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclasses.dataclass(frozen=True)
class SparseFlags:
    """Reads or keeps a part of the cache, with every method. With self-sparse only drafts read a part."""

    sparse: Annotated[str | None, tyro.conf.DisallowNone, _flag("NAME[:SETTING=VALUE,…]")] = None
    """Which slots of the cache a step reads: h2o, snapkv, tova and streaming evict the others; quest and tokenselect
    choose anew at each step, as butler, grouped, low-rank and gate do by a trained predictor; oracle, recency, random
    and dense are to compare with. As in h2o:recent=0.25,decay=0.98, or gate:FOLDER with the predictor's folder; with
    prompt=stepwise prompts are read by these slots too, a token at a time."""
    kv_budget: Annotated[str | None, tyro.conf.DisallowNone, _flag("N|P%")] = None
    """Slots that a step reads a KV head, or the share of the text that they are. By default as published."""
    page_size: Annotated[int | None, tyro.conf.DisallowNone, _flag("N")] = None
    """Slots side by side that are chosen together. By default as published."""
    sparse_from: Annotated[str | None, tyro.conf.DisallowNone, _flag("N|auto", "(default: auto)")] = None
    """Slots from which a step chooses what it reads; while all texts of a batch are shorter, it reads the whole cache.
    auto: from where choosing is faster on this device, by what it costs there. 0 always chooses."""

    def policy(self) -> Any:
        """Returns the library's policy; None without --sparse.

        Raises:
          UsageError: there is no such policy, a setting is out of range, or options go together with --sparse alone.
        """
        if self.sparse is None:
            for name in ("kv_budget", "page_size", "sparse_from"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name.replace('_', '-')} goes with --sparse")
            return None
        from jax_smash.sparse import Selecting, named_policy

        given = self.sparse_from if self.sparse_from is not None else AUTO
        if given != AUTO and not given.isdecimal():
            raise UsageError(f"--sparse-from must be auto or a number of slots; got {given!r}")
        try:
            policy = named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)
            if given == AUTO:
                return policy
            if not isinstance(policy, Selecting):
                raise UsageError(f"--sparse-from goes with a policy that chooses slots; got {self.sparse}")
            return dataclasses.replace(policy, pays_from=int(given))
        except ValueError as error:
            about_budget = self.kv_budget is not None and str(error).removeprefix("a ").startswith("budget")
            raise UsageError(f"{'--kv-budget' if about_budget else '--sparse'}: {error}") from error

    def policy_for(self, model: Any, *, batch: int, method: str) -> tuple[Any, str | None]:
        """Returns the policy for a model, and what a user should know of it, but for what is logged; None for nothing.

        Args:
          model: that is loaded.
          batch: rows that decode together.
          method: that decodes.

        Raises:
          FileNotFoundError, ValueError: a predictor is missing, or does not fit the model.
        """
        from jax_smash.sparse import Learned, Selecting, described, paying, told

        policy = self.policy()
        if policy is None:
            return None, None
        if isinstance(policy, Learned):
            policy = described(policy, model.name, model.config)
        # `sparsified` logs it; a policy of drafts alone does not come by there.
        said = [known] if method == SELF_SPARSE and (known := told(policy)) is not None else []
        if self.sparse_from in (None, AUTO):
            policy = paying(policy, model, batch=batch)
        if isinstance(policy, Selecting) and policy.pays_from:
            said.append(f"texts below {policy.pays_from} slots are read whole, which is faster; see --sparse-from")
        return policy, "; ".join(said) or None
