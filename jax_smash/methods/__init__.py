"""Decoding methods by name, and what each needs to run for a model. A new method is one entry here."""

from collections.abc import Callable
from typing import Any

from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.draft.warm_start import save_successors
from jax_smash.hosts import is_first
from jax_smash.loading import Model
from jax_smash.methods import drafted, hamburger
from jax_smash.methods.chimera import chimera
from jax_smash.methods.dflash import dflash
from jax_smash.methods.draft_options import INT8, OPTIONS, RANDOM, SPARSE, DraftOptions, check_draft, misfits
from jax_smash.methods.drafted import REACH
from jax_smash.methods.eagle import eagle
from jax_smash.methods.hamburger import check_smash, fitting_modules
from jax_smash.methods.hybrid import hybrid
from jax_smash.methods.medusa import medusa
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.self_sparse import self_sparse
from jax_smash.methods.shipped import with_folder
from jax_smash.methods.trained import method_of
from jax_smash.smash.options import SmashOptions


def make_method(
    model: Model,
    name: str,
    *,
    sampled: bool = False,
    log_probs: int | None = None,
    draft: DraftOptions = DraftOptions(),  # noqa: B008 - frozen
    smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
    batch: int = 1,
    slots: int = 512,
) -> Method:
    """Makes a method for a model.

    Args:
      model: the model that decodes.
      name: of `METHODS`.
      sampled: some row may sample.
      log_probs: record this many likeliest tokens beside each emitted one.
      draft: options of drafted decoding.
      smash: options of decoding with HAMburger.
      batch: rows that decode together; an automatic tree is sized for them.
      slots: cache slots for each row; an automatic tree is sized for them too.

    Raises:
      ValueError: no method has this name, or an option does not fit it.
      TypeError: `draft` or an option of HAMburger is of another type.
      OSError: a file that an option names cannot be read.
    """
    check_method(name)
    check_draft(name, draft)
    check_smash(name, smash)
    draft = with_folder(name, draft, model.name)
    return METHODS[name](
        Setup(model=model, sampled=sampled, log_probs=log_probs, draft=draft, smash=smash, batch=batch, slots=slots)
    )


def check_method(name: str) -> None:
    """Checks a method's name.

    Raises:
      ValueError: no method has it.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}")


def save_memory(model: Model, draft: DraftOptions, memory: dict[str, Any]) -> None:
    """Writes what the rows have learned to the file that the options name; does nothing where they name none.

    Of several hosts the first one writes.

    Args:
      model: the model that decoded.
      draft: the options.
      memory: what the rows shared at the end, by role.

    Raises:
      OSError: the file cannot be written.
    """
    if draft.save_warm_start is not None and is_first():
        known = memory["drafter"]
        probability = None if known.probability is None else known.probability.table
        save_successors(draft.save_warm_start, known.matrix.table, tokenizer=model.tokenizer, probability=probability)


def _plain(setup: Setup) -> Method:
    strategy = Autoregressive(target=setup.model.definition, sampled=setup.sampled, log_probs=setup.log_probs)
    return Method("ar", strategy, setup.model.params)


METHODS: dict[str, Callable[[Setup], Method]] = {
    "ar": _plain,
    "recycling": drafted.recycling,
    "lookup": drafted.lookup,
    "suffix": drafted.suffix,
    "lookahead": drafted.lookahead,
    "draft-model": drafted.draft_model,
    "hybrid": hybrid,
    "hamburger": hamburger.hamburger,
    "eagle": method_of("eagle", eagle),
    "medusa": method_of("medusa", medusa),
    "self-sparse": self_sparse,
    "chimera": method_of("chimera", chimera),
    "dflash": method_of("dflash", dflash),
}

__all__ = [
    "INT8",
    "METHODS",
    "OPTIONS",
    "RANDOM",
    "REACH",
    "SPARSE",
    "DraftOptions",
    "Method",
    "Setup",
    "SmashOptions",
    "check_draft",
    "check_method",
    "check_smash",
    "fitting_modules",
    "make_method",
    "misfits",
    "save_memory",
]
