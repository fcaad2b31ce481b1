"""Options of `jax-smash generate --method hamburger`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError

HAMBURGER = "hamburger"


def _flag(metavar: str, hint: str | None = None) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclasses.dataclass(frozen=True)
class SmashFlags:
    """For --method hamburger, which says groups of tokens and keeps each in one slot of the cache."""

    modules: Annotated[Path | None, tyro.conf.DisallowNone, _flag("FOLDER", "(default: beside the model)")] = None
    """HAMburger modules for the model. Where the folder holds a base too, that one decodes: they were trained
    together. With another --method that base alone is taken, to compare with."""
    smash_mode: Annotated[str, _flag("blind|exact|checked", "(default: blind)")] = "blind"
    """blind trusts the groups; exact takes them as drafts, so that the text is plain decoding's and tokens share no
    slots; checked fuses what the model itself agrees with."""
    confidence: Annotated[float, _flag("P")] = 0.7
    """A group goes on where the modules are at least so sure that it does: over 0, up to 1. Higher is slower and
    truer."""
    token_confidence: Annotated[float, _flag("P")] = 0.0
    """A group ends before a token unless the modules give their most probable one this probability: from 0, which
    trusts them, to 1."""
    micro_steps: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "(default: as trained)")] = None
    """Tokens of a group at most."""
    micro_head: Annotated[str, _flag("full|int8|N", "(default: full)")] = "full"
    """What tokens behind a group's first are read with: the model's head, its int8 copy, or the
    N tokens that were said most often in training."""
    least_rows: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "(default: by what a step costs)")] = None
    """All groups end when fewer rows of a batch would go on; with 1, a text does not depend on its batch."""

    def options(self, method: str) -> Any:
        """Returns the library's options of decoding with HAMburger.

        Args:
          method: that they are for.

        Raises:
          UsageError: the method takes none of them, or one is out of range.
        """
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default and f.name != "modules"]
        if given and method != HAMBURGER:
            raise UsageError(
                f"--{given[0].replace('_', '-')} does not go with --method {method}: it is for {HAMBURGER}"
            )
        from jax_smash.smash.options import SmashOptions

        options = SmashOptions(
            mode=self.smash_mode,
            confidence=self.confidence,
            token_confidence=self.token_confidence,
            micro_steps=self.micro_steps,
            micro_head=self.micro_head,
            least_rows=self.least_rows,
        )
        try:
            options.check()
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise UsageError(f"--{name.replace('_', '-')} {rest}") from error
        return options

    def modules_for(self, model: str, method: str, options: Any) -> Path | None:
        """Returns the folder of modules to load a model with, or whose base to decode with; None where there is none.

        Checks options against the model and what the modules were trained for, before any weight is read.

        Raises:
          FileNotFoundError: there is no such model, or it has no such modules.
          ValueError: the modules do not fit the model, or a file is damaged.
          UsageError: an option is larger than what they were trained for, or the vocabulary.
        """
        if method != HAMBURGER and self.modules is None:
            return None
        from jax_smash.checkpoints.configuration import checkpoint_config
        from jax_smash.loading import check_modules, find, find_modules

        folder = find_modules(model, self.modules or "auto")
        config, base = check_modules(model, folder), checkpoint_config(find(model))
        try:
            options.check(config, base.vocab_size)
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise UsageError(f"--{name.replace('_', '-')} {rest}") from error
        return folder
