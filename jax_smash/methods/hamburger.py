"""HAMburger in its three modes, and what it needs to run for a model."""

import dataclasses
from pathlib import Path
from typing import Any

from jax_smash.checkpoints.configuration import checkpoint_config
from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.decode.checked import CheckedDecoding
from jax_smash.decode.smashed import SmashedDecoding
from jax_smash.draft.micro import Micro
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import check_modules, find, find_modules
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.models.transformer import Transformer
from jax_smash.plan import tree_bytes
from jax_smash.protocols import Params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.group_limits import GroupLimits
from jax_smash.smash.micro_head import ROLE, MicroHead, int8_head, reduced_head
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse.model import SparseModel

NAME = "hamburger"


def check_smash(
    method: str, smash: SmashOptions, config: SmashConfig | None = None, vocab_size: int | None = None
) -> None:
    """Checks options of decoding with HAMburger.

    Args:
      method: the name of the method that they are for.
      smash: the options.
      config: the configuration of the modules; None checks only what can be checked without it.
      vocab_size: the vocabulary size of the base; None likewise.

    Raises:
      ValueError: the method takes none of them, or one is out of range.
      TypeError: one is of the wrong type.
    """
    for field in dataclasses.fields(smash):
        if method != NAME and getattr(smash, field.name) != field.default:
            option = "smash_mode" if field.name == "mode" else field.name
            raise ValueError(f"{option} does not go with method {method}: it is for {NAME}")
    smash.check(config, vocab_size)


def fitting_modules(model: str | Path, modules: str | Path | None, *options: SmashOptions) -> Path:
    """Returns the folder of a model's modules after checking that options fit them. It reads no weights.

    Args:
      model: as `load` takes it.
      modules: a folder; None for the one beside the model.
      options: options of decoding with HAMburger.

    Raises:
      FileNotFoundError: there is no such model, or it has no such modules.
      ValueError: the modules do not fit the model, a file is damaged, or an option exceeds the vocabulary or what the
        modules were trained for.
      TypeError: an option is of the wrong type.
    """
    found = modules or "auto"
    config, vocab_size = check_modules(model, found), checkpoint_config(find(model)).vocab_size
    for smash in options:
        check_smash(NAME, smash, config, vocab_size)
    return find_modules(model, found)


def hamburger(setup: Setup) -> Method:
    """Makes the method for a model that was loaded with modules.

    Raises:
      ValueError: it was loaded without modules, or an option does not go with the modules or the model.
      TypeError: an option is of the wrong type.
    """
    model, modules = setup.model, setup.model.modules
    if modules is None:
        raise ValueError(f"{model.name} has no HAMburger modules: load it with modules, or give --modules FOLDER")
    smash = setup.smash.settled(modules.options)
    setup = dataclasses.replace(setup, smash=smash)
    check_smash(NAME, smash, modules.config, model.vocab_size)
    params = {**model.params}
    if (head := _micro_head(setup, modules)) is not None:
        params[ROLE] = head
    limits = GroupLimits.of(smash, modules.config, cost=step_cost(params))
    if smash.mode == "exact":
        setup = dataclasses.replace(setup, model=dataclasses.replace(model, params=params))
        return _exact(setup, modules, limits)
    made_of: dict[str, Any] = {"target": model.definition, "smasher": modules.definition}
    made_of |= {"sampled": setup.sampled, "log_probs": setup.log_probs}
    strategy = (
        CheckedDecoding(**made_of, longest=smash.longest(modules.config))
        if smash.mode == "checked"
        else SmashedDecoding(**made_of)
    )
    return Method(NAME, strategy, params, {"limits": limits}, source=f"groups {smash.mode}")


def step_cost(params: Params) -> float:
    """Returns the cost of a micro-step in forwards of the base, estimated from the bytes of weights that each reads.

    Args:
      params: parameters of every module that decodes, by role, or their abstract shapes.
    """
    base, modules = params["target"], params["smasher"]
    table = base["head" if "head" in base else "embedding"]
    head = params[ROLE].table if ROLE in params else table
    whole = tree_bytes(base) - (tree_bytes(base["embedding"]) if "head" in base else 0)
    micro = tree_bytes(modules["micro_decoder"]) + tree_bytes(modules["stop_head"]) + tree_bytes(head)
    return micro / max(whole, 1)


def _exact(setup: Setup, modules: SmashModules, limits: GroupLimits) -> Method:
    """Makes the method of mode exact, which verifies groups as a tree, so that the text is that of plain decoding."""
    drafter = Micro(
        target=setup.model.definition,
        smasher=modules.definition,
        taps=tuple(tap for tap in modules.config.tap_numbers(setup.model.taps - 1) if tap is not None),
        sampled=setup.sampled,
    )
    longest = setup.smash.longest(modules.config)
    tree = f"chain-{longest - 1}" if longest > 1 else "off"
    ladder = Ladder(trees=(named_tree(tree),), source=f"groups as drafts, {tree}")
    return drafted(NAME, setup, drafter, limits, ladder=ladder)


def _micro_head(setup: Setup, modules: SmashModules) -> MicroHead | None:
    """Makes the micro head that the options ask for; None stands for the head of the base."""
    model, smash = setup.model, setup.smash
    if smash.micro_head == "full":
        return None
    base: Any = model.definition.bind(model.params["target"])
    base = base.model if isinstance(base, SparseModel) else base
    if not isinstance(base, Transformer):
        raise ValueError(f"micro_head {smash.micro_head} needs a model of this package; {model.name} is none")
    size = smash.head_size
    if size is None:
        return int8_head(base)
    counts = modules.token_counts
    if counts is None:
        raise ValueError(f"micro_head {size} needs the modules' token_counts; those of {model.name} have none")
    if smash.mode == "blind" and setup.log_probs is not None and setup.log_probs > size:
        raise ValueError(f"micro_head {size} can tell at most {size} likeliest tokens; got {setup.log_probs}")
    return reduced_head(base, counts, size, always=model.stop_tokens)
