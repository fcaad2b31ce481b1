"""Decoding methods by name, and what each needs to run for a model. A new method is one entry here."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.speculative import DraftMemory, Speculative
from jax_smash.draft.corpus import Corpus, index_corpus
from jax_smash.draft.corpus_texts import corpus_files, read_texts
from jax_smash.draft.draft_model import DraftModel, Draws
from jax_smash.draft.hybrid import Hybrid
from jax_smash.draft.lookahead import Lookahead
from jax_smash.draft.lookup import Lookup
from jax_smash.draft.recycling import WIDTH, Recycling
from jax_smash.draft.suffix import Suffix
from jax_smash.draft.templates import named_tree
from jax_smash.draft.tree import check_ranks
from jax_smash.draft.verification import VERIFICATIONS
from jax_smash.draft.warm_start import check_place, load_successors, save_successors
from jax_smash.ladder import Ladder, Reach, make_ladder
from jax_smash.loading import Model, load, quantised
from jax_smash.protocols import Params, Strategy
from jax_smash.quantise import activation_dtype


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """What a user may ask of drafted decoding.

    Attributes:
      tree: `auto`, or a name of `draft.templates.named_tree`.
      warm_start: a file with what the drafter begins with.
      save_warm_start: a file for what it knows at the end, made when the last prompt is done; an older one is replaced.
      lookup_corpus: texts to look up in instead of the prompt and the output, as `draft.corpus_texts` reads them.
      draft_model: a loaded model, what `load` takes, or `int8` for the target itself with int8 weights.
      verify: a name of `VERIFICATIONS`.
      stored_probabilities: Token Recycling keeps each successor's probability too, and grows its trees by them.
    """

    tree: str = "auto"
    warm_start: Path | None = None
    save_warm_start: Path | None = None
    lookup_corpus: Path | None = None
    draft_model: str | Model | None = None
    verify: str = "coupling"
    stored_probabilities: bool = False


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode one model.

    Attributes:
      name: of `METHODS`.
      strategy: what one step of the loop does.
      params: parameters of every module that decodes, by role.
      memory: what the rows share before the first of them has read anything; None in plain decoding.
      source: what the choice of trees rests on, as a user is told it; "" in plain decoding.
    """

    name: str
    strategy: Strategy
    params: Params
    memory: Any = None
    source: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree that a step checks, the root included; 1 where nothing is drafted."""
        ladder = getattr(self.memory, "ladder", ())
        return max((topology.nodes for topology in ladder), default=1)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a method is made from.

    Attributes:
      model: that decodes.
      sampled: some row may sample.
      log_probs: likeliest tokens to record beside each emitted one.
      draft: options of drafted decoding.
      batch: rows that decode together.
      slots: cache slots a row.
    """

    model: Model
    sampled: bool
    log_probs: int | None
    draft: DraftOptions
    batch: int
    slots: int


def make_method(
    model: Model,
    name: str,
    *,
    sampled: bool = False,
    log_probs: int | None = None,
    draft: DraftOptions = DraftOptions(),
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
      batch: rows that decode together, and
      slots: cache slots a row: by these an automatic tree is sized.

    Raises:
      ValueError: no method has this name, or an option does not fit it.
      OSError: a file that an option names cannot be read.
    """
    check_method(name)
    check_draft(name, draft)
    return METHODS[name](
        Setup(model=model, sampled=sampled, log_probs=log_probs, draft=draft, batch=batch, slots=slots)
    )


def check_method(name: str) -> None:
    """Checks a method's name.

    Raises:
      ValueError: no method has it.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}")


def check_draft(name: str, draft: DraftOptions) -> None:
    """Checks what can be checked of options of drafting before there is a model.

    Args:
      name: of a method.
      draft: its options.

    Raises:
      ValueError: the method does not take one of them, or there is no such tree.
      OSError: a file that one of them names is missing, or cannot be made.
    """
    for option in misfits(name, draft):
        taken = ", ".join(OPTIONS.get(name, ())) or "no option of drafting"
        raise ValueError(f"{option} does not go with method {name}, which takes {taken}")
    with _about("tree"):
        if draft.tree != "auto":
            named_tree(draft.tree)
    if draft.verify not in VERIFICATIONS:
        raise ValueError(f"verify must be one of {', '.join(VERIFICATIONS)}; got {draft.verify!r}")
    if name != "draft-model" and DRAWS.get(draft.verify) in (Draws.DIFFERENT, Draws.INDEPENDENT):
        raise ValueError(f"verify {draft.verify} is for drawn tokens, as method draft-model drafts; got {name}")
    if draft.warm_start is not None and not draft.warm_start.is_file():
        raise FileNotFoundError(f"{draft.warm_start} is no file: there is nothing to start from")
    if draft.save_warm_start is not None:
        check_place(draft.save_warm_start)
    with _about("lookup-corpus"):
        if draft.lookup_corpus is not None:
            corpus_files(draft.lookup_corpus)


@contextlib.contextmanager
def _about(option: str) -> Iterator[None]:
    """Begins errors with the option that they are about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def misfits(name: str, draft: DraftOptions) -> list[str]:
    """Returns the options that are given and that a method does not take."""
    given = [f.name for f in dataclasses.fields(draft) if getattr(draft, f.name) != f.default]
    return [option for option in given if option not in OPTIONS.get(name, ())]


def save_memory(model: Model, draft: DraftOptions, memory: Any) -> None:
    """Writes what the rows have learned to where the options say; does nothing where they name no file.

    Args:
      model: that decoded.
      draft: the options.
      memory: what the rows shared at the end.

    Raises:
      OSError: the file cannot be written.
    """
    if draft.save_warm_start is not None:
        known = memory.drafter
        save_successors(draft.save_warm_start, known.matrix, tokenizer=model.tokenizer, probability=known.probability)


def _plain(setup: Setup) -> Method:
    strategy = Autoregressive(target=setup.model.definition, sampled=setup.sampled, log_probs=setup.log_probs)
    return Method("ar", strategy, setup.model.params)


def _recycling(setup: Setup) -> Method:
    drafter = Recycling(target=setup.model.definition, probabilities=setup.draft.stored_probabilities)
    known, file = drafter.empty(setup.model.params), setup.draft.warm_start
    if file is not None:
        rows, width = known.matrix.shape
        saved = load_successors(file, vocab_size=rows, width=width, tokenizer=setup.model.tokenizer)
        known = drafter.warmed(known, *saved)
    return _drafted("recycling", setup, drafter, known)


def _lookup(setup: Setup) -> Method:
    path = setup.draft.lookup_corpus
    if path is None:
        return _drafted("lookup", setup, Lookup(), None)
    index = index_corpus(read_texts(path), setup.model.tokenizer)
    return _drafted("lookup", setup, Corpus(), index)


def _suffix(setup: Setup) -> Method:
    return _drafted("suffix", setup, Suffix(), None)


def _lookahead(setup: Setup) -> Method:
    drafter = Lookahead()
    own = None
    if setup.draft.tree == "auto":
        own = Ladder(trees=(drafter.topology,), first=0, sizing=None, source="the method's own window and guesses")
    return _drafted("lookahead", setup, drafter, None, ladder=own)


def _hybrid(setup: Setup) -> Method:
    tree = Recycling(target=setup.model.definition)
    known = (tree.empty(setup.model.params), None)
    return _drafted("hybrid", setup, Hybrid(tree=tree, line=Suffix()), known)


def _draft_model(setup: Setup) -> Method:
    name, target = setup.draft.draft_model, setup.model
    if name is None:
        raise ValueError("method draft-model needs a draft_model: a model's name, or int8 for the target's own copy")
    if setup.draft.tree == "off":
        raise ValueError("a draft model must draft: tree off does not go with method draft-model")
    drafting = _drafting(name, target)
    if drafting.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model must have the target's vocabulary of {target.vocab_size} tokens; "
            f"{drafting.name} has {drafting.vocab_size}"
        )
    if drafting.tokenizer and target.tokenizer and drafting.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise ValueError(f"the draft model must have the target's tokenizer; that of {drafting.name} has other tokens")
    tree = DRAFT_MODEL_TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology, draws = named_tree(tree), DRAWS.get(setup.draft.verify, Draws.COUPLED)
    if draws is Draws.DIFFERENT:
        check_ranks(topology)
    width = int(topology.rank.max()) + 1
    if width > target.vocab_size:
        raise ValueError(f"a node has at most {target.vocab_size} children, as many as tokens; got {width} in {tree}")
    ladder = Ladder(trees=(topology,), first=0, sizing=None, source=f"the tree {tree}")
    drafter = DraftModel(model=drafting.definition, width=width, draws=draws, sampled=setup.sampled)
    method = _drafted("draft-model", setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": drafting.params["target"]})


def _drafting(name: str | Model, target: Model) -> Model:
    if isinstance(name, Model):
        return name
    return quantised(target) if name == INT8 else load(name, dtype=activation_dtype(target.params["target"]))


def _drafted(name: str, setup: Setup, drafter: Any, memory: Any, *, ladder: Ladder | None = None) -> Method:
    ladder = ladder or make_ladder(
        setup.model, setup.draft.tree, method=name, reach=REACH.get(name), batch=setup.batch, slots=setup.slots
    )
    strategy = Speculative(
        target=setup.model.definition,
        drafter=drafter,
        levels=max(tree.levels for tree in ladder.trees),
        verification=VERIFICATIONS[setup.draft.verify],
        sampled=setup.sampled,
        log_probs=setup.log_probs,
    )
    shared = DraftMemory(
        ladder=ladder.trees, choice=jnp.asarray(ladder.first, jnp.int32), drafter=memory, sizing=ladder.sizing
    )
    return Method(name, strategy, setup.model.params, shared, source=ladder.source)


LOOKED_UP = Reach(ranks=4, levels=10, deeper=0.7, fall=0.2)
"""Continuations that were found somewhere seldom differ, and go on being right where they began right."""

REACH: dict[str, Reach] = {
    "recycling": Reach(ranks=WIDTH, levels=6),
    "lookup": LOOKED_UP,
    "suffix": LOOKED_UP,
    "hybrid": Reach(ranks=WIDTH, levels=10),
}
"""What automatic trees of a method can use; one that is not named has none, or a tree of its own."""

INT8 = "int8"
"""Name of a draft model that is the target itself with int8 weights."""

DRAFT_MODEL_TREE = "chain-4"
"""What a draft model drafts where no tree is named."""

DRAWS: dict[str, Draws] = {
    "rejection": Draws.DIFFERENT,
    "rejection-independent": Draws.INDEPENDENT,
    "k-seq": Draws.INDEPENDENT,
    "typical-lossy": Draws.LIKELIEST,
}
"""How a draft model draws for a verification; for others, with the noise of the target's choice."""

METHODS: dict[str, Callable[[Setup], Method]] = {
    "ar": _plain,
    "recycling": _recycling,
    "lookup": _lookup,
    "suffix": _suffix,
    "lookahead": _lookahead,
    "draft-model": _draft_model,
    "hybrid": _hybrid,
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "recycling": ("tree", "warm_start", "save_warm_start", "verify", "stored_probabilities"),
    "lookup": ("tree", "lookup_corpus", "verify"),
    "suffix": ("tree", "verify"),
    "lookahead": ("tree", "verify"),
    "draft-model": ("tree", "draft_model", "verify"),
    "hybrid": ("tree", "verify"),
}
"""Options of drafting that a method takes; one that is not named takes none."""
