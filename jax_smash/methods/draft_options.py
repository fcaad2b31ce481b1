"""The options of drafted decoding, and which method takes which."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jax_smash.checkpoints.chimera import ChimeraModules, read_chimera
from jax_smash.checkpoints.contents import DRAFTERS
from jax_smash.checkpoints.dflash import DFlashModules, read_dflash
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.eagle_drafters import read_eagle_drafter
from jax_smash.checkpoints.medusa import MedusaModules, read_medusa
from jax_smash.costs import read_costs
from jax_smash.draft.corpus_texts import corpus_files
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.verify.named import VERIFICATIONS
from jax_smash.draft.warm_start import check_place
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import drafting_policy, named_policy

DRAWS: dict[str, Draws] = {
    "rejection": Draws.DIFFERENT,
    "rejection-independent": Draws.INDEPENDENT,
    "k-seq": Draws.INDEPENDENT,
    "typical-lossy": Draws.LIKELIEST,
}
"""How a drafter draws for each verification; for one not named here, with the noise of the target's choice."""

DRAWN = ("draft-model", "dflash")
"""Methods whose drafts may be drawn, from a distribution that the rules of rejection know."""

SPARSE = "sparse:"
"""What a draft model's name begins with that is the target itself, with a cache read by the policy named behind it."""

INT8 = "int8"
"""Name of a draft model that is the target itself with int8 weights."""

RANDOM = "random"
"""Name of a drafter with random weights, which tells what drafting costs."""

SHIPPED = "shipped:"
"""Prefix that names a shipped drafter by its method, in place of a folder."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "recycling": ("tree", "costs", "warm_start", "save_warm_start", "verify", "stored_probabilities"),
    "lookup": ("tree", "costs", "lookup_corpus", "verify"),
    "suffix": ("tree", "costs", "verify"),
    "lookahead": ("tree", "verify"),
    "draft-model": ("tree", "draft_model", "verify"),
    "self-sparse": ("tree", "draft_model", "sparse", "verify"),
    "hybrid": ("tree", "costs", "drafter", "verify"),
    "eagle": ("tree", "costs", "drafter", "verify"),
    "medusa": ("tree", "costs", "drafter", "verify"),
    "chimera": ("tree", "costs", "drafter", "verify", "gram_slots"),
    "dflash": ("tree", "costs", "drafter", "verify"),
}
"""The drafting options that each method takes; a method not named here takes none."""

CONFIDENT = ("eagle", "medusa", "chimera")
"""Methods whose trees may grow by the drafter's confidence."""

LOOKUPS = ("lookup", "suffix")
"""Methods without one whose chains may stop, by how much of the text agrees."""

READERS: dict[str, Callable[[str | Path], Any]] = {
    "eagle": read_eagle_drafter,
    "medusa": read_medusa,
    "chimera": read_chimera,
    "dflash": read_dflash,
}
"""What reads the description of a folder's drafter, by method. Method hybrid takes a drafter of any of them."""


KINDS: dict[type, str] = {
    EagleModules: "eagle",
    Eagle1Modules: "eagle",
    MedusaModules: "medusa",
    ChimeraModules: "chimera",
    DFlashModules: "dflash",
}
"""The method of a loaded drafter."""


def drafts_with(drafter: Any) -> str:
    """Returns the method of a trained drafter.

    Args:
      drafter: a folder, the name of a shipped one, or a loaded one.

    Raises:
      ValueError: it is none.
    """
    if not isinstance(drafter, str | Path):
        if type(drafter) not in KINDS:
            kinds = " or ".join(kind.__name__ for kind in KINDS)
            raise ValueError(f"the drafter must be {kinds}; got {type(drafter).__name__}")
        return KINDS[type(drafter)]
    if str(drafter).startswith(SHIPPED):
        return str(drafter).removeprefix(SHIPPED)
    found = [file for file in DRAFTERS if (Path(drafter).expanduser() / file).is_file()]
    if len(found) != 1:
        got = " and ".join(found) or "none"
        raise ValueError(f"{drafter} must be a folder with one of {', '.join(DRAFTERS)}; got {got}{_foreign(drafter)}")
    method = Path(found[0]).stem
    return "eagle" if method == "eagle1" else method


def _foreign(folder: str | Path) -> str:
    """Returns how to convert a folder that another program wrote; nothing of others."""
    if not (Path(folder).expanduser() / "config.json").is_file():
        return ""
    return f": jax-smash convert {folder} OUT --to eagle|medusa --base MODEL reads published ones"


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """The options of drafted decoding. A file may be named by a text, which becomes a `Path`; `~` is the home folder.

    Attributes:
      tree: `auto`, a name of `draft.trees.templates.named_tree`, or of `draft.trees.confident.confident`.
      costs: a file with the cost curve that alone decides where the tree is `auto`, as `costs.store.read_costs` reads
        it; None begins with a stored curve and follows what steps take.
      warm_start: a file with what an earlier drafter learned, to begin with.
      save_warm_start: a file for what the drafter has learned when the last prompt is done; an older file is replaced.
      lookup_corpus: texts to search instead of the prompt and the output, as `draft.corpus_texts` reads them.
      draft_model: a loaded model, what `load` takes, or the target itself: with int8 weights by `int8`, with its cache
        read by a policy by `sparse:` and what `sparse.named_policy` takes. Method self-sparse takes `int8` alone.
      sparse: the policy of what method self-sparse reads of the target's cache to draft, or what `sparse.named_policy`
        takes; None for the method's own.
      drafter: a folder that `checkpoints.eagle.save_eagle`, `checkpoints.eagle1.save_eagle1`,
        `checkpoints.medusa.save_medusa`, `checkpoints.chimera.save_chimera` or `checkpoints.dflash.save_dflash` wrote,
        by the method; `shipped:` and its method for one that comes with the package, as None stands for a method's own;
        a loaded drafter; or, but for method hybrid, `random` for random weights.
      verify: a name of `VERIFICATIONS`.
      gram_slots: grams whose codes Chimera keeps for each row, to look them up; 0 makes every code anew.
      stored_probabilities: Token Recycling also keeps the probability of each successor and grows its trees by these.
    """

    tree: str = "auto"
    costs: Path | None = None
    warm_start: Path | None = None
    save_warm_start: Path | None = None
    lookup_corpus: Path | None = None
    draft_model: str | Model | None = None
    sparse: str | SparsePolicy | None = None
    drafter: str | Path | EagleModules | Eagle1Modules | MedusaModules | ChimeraModules | DFlashModules | None = None
    verify: str = "coupling"
    stored_probabilities: bool = False
    gram_slots: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.tree, str):
            raise TypeError(f"tree must be a name or a .json file's; got {type(self.tree).__name__}")
        for name in ("costs", "warm_start", "save_warm_start", "lookup_corpus"):
            given = getattr(self, name)
            if isinstance(given, str | Path):
                object.__setattr__(self, name, Path(given).expanduser())


def check_draft(name: str, draft: DraftOptions) -> None:
    """Checks drafting options, as far as that is possible without a model.

    Args:
      name: the name of the method.
      draft: its options.

    Raises:
      TypeError: they are no `DraftOptions`.
      ValueError: the method does not take one of them, or there is no such tree.
      OSError: a file that one of them names is missing, or cannot be made.
    """
    if not isinstance(draft, DraftOptions):
        raise TypeError(f"draft must be DraftOptions; got {type(draft).__name__}")
    for option in misfits(name, draft):
        taken = ", ".join(OPTIONS.get(name, ())) or "no option of drafting"
        raise ValueError(f"{option} does not go with method {name}, which takes {taken}")
    with _about("costs"):
        if draft.costs is not None:
            if draft.tree != "auto":
                raise ValueError(f"they are for tree auto; got tree {draft.tree}")
            read_costs(draft.costs)
    with _about("draft-model"):
        if isinstance(draft.draft_model, str) and draft.draft_model.startswith(SPARSE):
            named_policy(draft.draft_model.removeprefix(SPARSE))
        if name == "self-sparse" and draft.draft_model not in (None, INT8):
            raise ValueError(
                f"method self-sparse drafts by the model itself, so it must be {INT8}, or none; got a model"
            )
    with _about("sparse"):
        if draft.sparse is not None:
            drafting_policy(named_policy(draft.sparse) if isinstance(draft.sparse, str) else draft.sparse)
    if draft.verify not in VERIFICATIONS:
        raise ValueError(f"verify must be one of {', '.join(VERIFICATIONS)}; got {draft.verify!r}")
    if name not in DRAWN and DRAWS.get(draft.verify) in (Draws.DIFFERENT, Draws.INDEPENDENT):
        said = f"as {' or '.join(DRAWN)} drafts"
        raise ValueError(f"verify {draft.verify} is for drawn tokens, {said}; got method {name}")
    if draft.gram_slots < 0:
        raise ValueError(f"gram_slots must be at least 0; got {draft.gram_slots}")
    if draft.warm_start is not None and not draft.warm_start.is_file():
        raise FileNotFoundError(f"{draft.warm_start} is no file: there is nothing to start from")
    if draft.save_warm_start is not None:
        check_place(draft.save_warm_start)
    with _about("drafter"):
        given = draft.drafter
        if isinstance(given, str) and given.startswith(SHIPPED):
            method, possible = given.removeprefix(SHIPPED), tuple(READERS) if name == "hybrid" else (name,)
            if method not in possible:
                raise ValueError(f"must be {' or '.join(SHIPPED + known for known in possible)}; got {given}")
        elif isinstance(given, str | Path) and str(given) == RANDOM:
            if name == "hybrid":
                raise ValueError(f"must be a folder or {SHIPPED}METHOD, which tells what drafts; got {RANDOM}")
        elif isinstance(given, str | Path):
            if name not in ("hybrid", method := drafts_with(given)):
                raise ValueError(f"{given} holds a drafter of method {method}; got method {name}")
            READERS[method](given)
    with _about("tree"):
        if draft.tree != "auto":
            _check_tree(name, draft)
    with _about("lookup-corpus"):
        if draft.lookup_corpus is not None:
            corpus_files(draft.lookup_corpus)


def _check_tree(name: str, draft: DraftOptions) -> None:
    """Refuses a tree that there is none of, or that the method does not go with."""
    if confident(draft.tree) is None:
        named_tree(draft.tree)
        return
    if draft.tree.startswith("chain-") and name in LOOKUPS and draft.lookup_corpus is None:
        return
    if name == "hybrid" and draft.drafter is not None:
        name = drafts_with(draft.drafter)
    if name not in CONFIDENT:
        methods = (
            f"methods {', '.join(CONFIDENT[:-1])} and {CONFIDENT[-1]}, with hybrid and a drafter of one of them, and "
            f"as a chain with {' and '.join(LOOKUPS)} in the text itself"
        )
        raise ValueError(f"{draft.tree} needs the drafter's probabilities, so it goes with {methods}; got {name}")


@contextlib.contextmanager
def _about(option: str) -> Iterator[None]:
    """Puts the name of the option before the message of an error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def misfits(name: str, draft: DraftOptions) -> list[str]:
    """Returns the given options that a method does not take."""
    given = [f.name for f in dataclasses.fields(draft) if getattr(draft, f.name) != f.default]
    return [option for option in given if option not in OPTIONS.get(name, ())]
