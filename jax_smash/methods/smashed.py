"""HAMburger in its three modes, and what it needs to run for a model."""

import dataclasses
from typing import Any

from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.decode.checked import CheckedDecoding
from jax_smash.decode.smashed import SmashedDecoding
from jax_smash.draft.micro import Micro
from jax_smash.draft.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.models.transformer import Transformer
from jax_smash.plan import tree_bytes
from jax_smash.protocols import Params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.micro_head import ROLE, MicroHead, int8_head, reduced_head
from jax_smash.smash.options import SmashOptions, SmashSettings

NAME = "hamburger"


def check_smash(method: str, smash: SmashOptions, config: SmashConfig | None = None) -> None:
    """Checks options of decoding with HAMburger.

    Args:
      method: that they are for.
      smash: the options.
      config: of the modules; None checks what can be checked without.

    Raises:
      ValueError: the method takes none of them, or one is out of range.
      TypeError: one is no number.
    """
    for field in dataclasses.fields(smash):
        if method != NAME and getattr(smash, field.name) != field.default:
            option = "smash_mode" if field.name == "mode" else field.name
            raise ValueError(f"{option} does not go with method {method}: it is for {NAME}")
    smash.check(config)


def hamburger(setup: Setup) -> Method:
    """Makes the method for a model that was loaded with modules."""
    model, smash, modules = setup.model, setup.smash, setup.model.modules
    if modules is None:
        raise ValueError(f"{model.name} has no HAMburger modules: load it with modules, or give --modules FOLDER")
    check_smash(NAME, smash, modules.config)
    params = {**model.params}
    if (head := _micro_head(setup, modules)) is not None:
        params[ROLE] = head
    settings = SmashSettings.of(smash, modules.config, cost=step_cost(params))
    if smash.mode == "exact":
        setup = dataclasses.replace(setup, model=dataclasses.replace(model, params=params))
        return _exact(setup, modules, settings)
    strategy = (CheckedDecoding if smash.mode == "checked" else SmashedDecoding)(
        target=model.definition,
        smasher=modules.definition,
        sampled=setup.sampled,
        log_probs=setup.log_probs,
    )
    return Method(NAME, strategy, params, settings, source=f"groups {smash.mode}")


def step_cost(params: Params) -> float:
    """Returns what a micro-step costs, in forwards of the base: by the bytes of weights that each reads.

    Args:
      params: of every module that decodes, by role, or their abstract shapes.
    """
    base, modules = params["target"], params["smasher"]
    table = base["head" if "head" in base else "embedding"]
    head = params[ROLE].table if ROLE in params else table
    whole = tree_bytes(base) - (tree_bytes(base["embedding"]) if "head" in base else 0)
    micro = tree_bytes(modules["micro_decoder"]) + tree_bytes(modules["stop_head"]) + tree_bytes(head)
    return micro / max(whole, 1)


def _exact(setup: Setup, modules: SmashModules, settings: SmashSettings) -> Method:
    """Makes the tree verifier's method: the text is plain decoding's."""
    drafter = Micro(target=setup.model.definition, smasher=modules.definition, sampled=setup.sampled)
    longest = setup.smash.longest(modules.config)
    tree = f"chain-{longest - 1}" if longest > 1 else "off"
    ladder = Ladder(trees=(named_tree(tree),), first=0, sizing=None, source=f"groups as drafts, {tree}")
    return drafted(NAME, setup, drafter, settings, ladder=ladder)


def _micro_head(setup: Setup, modules: SmashModules) -> MicroHead | None:
    """Makes the head that is asked for; None for the base's own."""
    model, smash = setup.model, setup.smash
    if smash.micro_head == "full":
        return None
    base: Any = model.definition.bind(model.params["target"])
    if not isinstance(base, Transformer):
        raise ValueError(f"micro_head {smash.micro_head} needs a model of this package; {model.name} is none")
    size = smash.head_size
    if size is None:
        return int8_head(base)
    counts = modules.token_counts
    if counts is None:
        raise ValueError(f"micro_head {size} needs the modules' token_counts; those of {model.name} have none")
    if setup.log_probs is not None and setup.log_probs > size:
        raise ValueError(f"micro_head {size} can tell at most {size} likeliest tokens; got {setup.log_probs}")
    return reduced_head(base, counts, size, always=model.stop_tokens)
