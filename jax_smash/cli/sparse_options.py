"""Options of sparse caches: `--sparse NAME --kv-budget 512|25% --page-size N`."""

import dataclasses
from typing import Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError


def _flag(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@dataclasses.dataclass(frozen=True)
class SparseFlags:
    """Reading or keeping a part of the cache, with every method."""

    sparse: Annotated[str | None, tyro.conf.DisallowNone, _flag("NAME[:SETTING=VALUE,…]")] = None
    """Which slots of the cache a step reads: h2o, snapkv, tova and streaming evict the others; quest and tokenselect
    choose anew at each step, as butler, grouped and gate do by a trained predictor; oracle, recency, random and dense
    are to compare with. As in h2o:grace=16,decay=0.98, or gate:FOLDER with the predictor's folder; with prompt=stepwise
    prompts are read by these slots too, a token at a time."""
    kv_budget: Annotated[str | None, tyro.conf.DisallowNone, _flag("N|P%")] = None
    """Slots that a step reads a KV head, or the share of the text that they are. By default as published."""
    page_size: Annotated[int | None, tyro.conf.DisallowNone, _flag("N")] = None
    """Slots side by side that are chosen together. By default as published."""

    def policy(self) -> Any:
        """Returns the library's policy; None without --sparse.

        Raises:
          UsageError: there is no such policy, a setting is out of range, or options go together with --sparse alone.
        """
        if self.sparse is None:
            for name in ("kv_budget", "page_size"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name.replace('_', '-')} goes with --sparse")
            return None
        from jax_smash.sparse import named_policy

        try:
            return named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)
        except ValueError as error:
            raise UsageError(f"--sparse: {error}") from error
