"""Methods that draft, and what each needs to run for a model."""

import dataclasses
import logging
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_smash.decode.drafts import Trees
from jax_smash.decode.speculative import Speculative
from jax_smash.draft.corpus import Corpus, index_corpus
from jax_smash.draft.corpus_texts import read_texts
from jax_smash.draft.draft_model import DraftModel, Draws
from jax_smash.draft.hybrid import Hybrid
from jax_smash.draft.lookahead import Lookahead
from jax_smash.draft.lookup import Lookup
from jax_smash.draft.recycling import WIDTH, Recycling
from jax_smash.draft.suffix import Suffix
from jax_smash.draft.trees.confident import Confident, confident
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import check_ranks, is_chain
from jax_smash.draft.verify.named import VERIFICATIONS
from jax_smash.draft.warm_start import load_successors
from jax_smash.ladder import Ladder, Reach, make_ladder, narrows, tile_rows
from jax_smash.loading import Model, load, quantised
from jax_smash.methods.draft_options import DRAWS, INT8, SPARSE
from jax_smash.methods.method import Method, Setup
from jax_smash.protocols import Drafter, Needs, honours_trees, longest_block
from jax_smash.quantise import activation_dtype
from jax_smash.sharding import mesh_of, place
from jax_smash.sparse import named_policy, sparsified

LOG = logging.getLogger("jax_smash")

LOOKED_UP = Reach(ranks=4, levels=10, deeper=0.7, fall=0.2)
"""Continuations found by lookup seldom differ, and one that begins right mostly stays right."""

REACH: dict[str, Reach] = {
    "recycling": Reach(ranks=WIDTH, levels=6),
    "lookup": LOOKED_UP,
    "suffix": LOOKED_UP,
    "hybrid": Reach(ranks=WIDTH, levels=10),
}
"""How far the automatic trees of methods that need no weights may reach.

Trained drafters and self-sparse have a reach in their own files; all others have a tree of their own, or none.
"""

STOPPING = Confident(7, depth=7, width=1, least=0.2)
"""The automatic tree of a lookup where forwards over fewer nodes take less time."""

STOPPING_REACH = dataclasses.replace(LOOKED_UP, ranks=1, levels=STOPPING.levels, stopping=STOPPING.nodes)

DRAFT_MODEL_TREE = "chain-4"
"""The tree of a draft model where none is named."""


def recycling(setup: Setup) -> Method:
    """Makes the method Token Recycling for a model.

    Raises:
      ValueError: the file to start from is damaged, or was made with another vocabulary or tokenizer.
      OSError: it cannot be read.
    """
    drafter = Recycling(target=setup.model.definition, probabilities=setup.draft.stored_probabilities)
    known, file = drafter.empty(setup.model.params), setup.draft.warm_start
    if file is not None:
        rows, width = known.matrix.table.shape
        saved = load_successors(file, vocab_size=rows, width=width, tokenizer=setup.model.tokenizer)
        known = drafter.warmed(known, *saved)
    return drafted("recycling", setup, drafter, known)


def lookup(setup: Setup) -> Method:
    """Makes the method prompt lookup for a model: in the text itself, or in texts that the options name.

    Raises:
      ValueError: these texts are damaged, or hold nothing to look up.
      OSError: they cannot be read.
    """
    path = setup.draft.lookup_corpus
    if path is None:
        return _looked_up("lookup", setup, Lookup)
    index = index_corpus(read_texts(path), setup.model.tokenizer)
    return drafted("lookup", setup, Corpus(), index)


def suffix(setup: Setup) -> Method:
    """Makes the method suffix lookup for a model."""
    return _looked_up("suffix", setup, Suffix)


def _looked_up(name: str, setup: Setup, kind: type[Lookup] | type[Suffix]) -> Method:
    """Makes a method that looks things up in the text itself, whose chains may stop."""
    tree = setup.draft.tree
    if tree == "auto" and narrows() and setup.draft.verify == "coupling":
        return drafted(name, setup, kind(least=STOPPING.least), None, reach=STOPPING_REACH)
    sizes = confident(tree)
    if sizes is None:
        return drafted(name, setup, kind(), None)
    ladder = Ladder(trees=(sizes.topology,), source=f"the tree {tree}")
    return drafted(name, setup, kind(least=sizes.least), None, ladder=ladder)


def lookahead(setup: Setup) -> Method:
    """Makes the method Lookahead for a model; its automatic tree holds the method's own window and guesses."""
    drafter = Lookahead()
    own = None
    if setup.draft.tree == "auto":
        own = Ladder(trees=(drafter.topology,), source="the method's own window and guesses")
    return drafted("lookahead", setup, drafter, None, ladder=own)


def draft_model(setup: Setup) -> Method:
    """Makes the method for a model whose tokens another model drafts, or a copy of itself.

    Raises:
      ValueError: no draft model is named, nothing is to be drafted, or the draft model does not fit: its vocabulary,
        tokenizer or positions are other ones, or it cannot read such trees.
      FileNotFoundError: there is no such model.
    """
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
    if drafting.config is None and (drafting.max_positions or setup.slots) < setup.slots:
        raise ValueError(
            f"rows have room for {setup.slots} tokens, and the draft model {drafting.name} has positions for "
            f"{drafting.max_positions}"
        )
    tell_of_positions(drafting.max_positions or 0, setup.slots)
    tree = DRAFT_MODEL_TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology, draws = named_tree(tree), DRAWS.get(setup.draft.verify, Draws.COUPLED)
    if draws is Draws.DIFFERENT:
        check_ranks(topology)
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    width, room = width_and_room(ladder, target)
    check_blocks(drafting, "draft-model", ladder)
    params = drafting.params["target"]
    # A token that was missed is read with a piece.
    longest = longest_block(drafting.definition.bind(params))
    drafter = DraftModel(
        model=drafting.definition,
        width=width,
        room=room,
        draws=draws,
        sampled=setup.sampled,
        positions=drafting.max_positions,
    )
    method = drafted("draft-model", setup, drafter, None, ladder=ladder)
    return dataclasses.replace(
        method,
        params={**method.params, "drafter": params},
        longest_piece=None if longest is None else longest - 1,
    )


def tell_of_positions(most: int, slots: int) -> None:
    """Warns where rows have room for more tokens than what drafts has positions, 0 for any number."""
    if 0 < most < slots:
        LOG.warning(
            "jax-smash: rows have room for %d tokens, and the drafter has positions for %d: later ones are not drafted",
            slots,
            most,
        )


def width_and_room(ladder: Ladder, model: Model) -> tuple[int, int]:
    """Returns how many children a node of a ladder's trees has at most, and how many nodes a level that has children.

    Raises:
      ValueError: a node has more children than there are tokens.
    """
    width = max(int(tree.rank.max()) + 1 for tree in ladder.trees)
    if width > model.vocab_size:
        raise ValueError(
            f"a node has at most {model.vocab_size} children, as many as tokens; got {width} in {ladder.source}"
        )
    return width, max((n for tree in ladder.trees for n in np.bincount(tree.depth)[:-1].tolist()), default=1)


def check_blocks(model: Model, method: str, ladder: Ladder, *, branches: bool = False) -> None:
    """Refuses trees for a model that reads every block in order.

    Args:
      model: that checks the trees, or drafts them.
      method: that drafts.
      ladder: its trees.
      branches: the method's drafts may branch whatever the tree.

    Raises:
      ValueError: the model does not honour tree blocks, and what is drafted is no chain.
    """
    if honours_trees(model.definition.bind(model.params["target"])):
        return
    drafting = [tree for tree in ladder.trees if tree.levels]
    if not drafting:
        return
    if branches:
        raise ValueError(
            f"method {method} drafts trees that branch, and {model.name} does not honour tree blocks (tree_blocks): "
            "name a tree that is a chain, or take a method that drafts one, such as lookup"
        )
    if not all(is_chain(tree) for tree in drafting):
        raise ValueError(
            f"{ladder.source} branches, and {model.name} does not honour tree blocks (tree_blocks): "
            "draft a chain, as in tree chain-4"
        )


def check_taps(model: Model, method: str, needs: Needs) -> None:
    """Refuses a model that tells fewer of its layers than a method reads. Nothing is allocated.

    Raises:
      ValueError: a tap is missing.
    """
    if needs.taps and max(needs.taps) >= model.taps:
        raise ValueError(
            f"method {method} reads tap {max(needs.taps)} of the model; {model.name} has {model.taps} taps"
        )


def _drafting(name: str | Model, target: Model) -> Model:
    """Returns the model that drafts, on the target's devices."""
    mesh = mesh_of(target.params)
    if isinstance(name, Model):
        return name if mesh is None else dataclasses.replace(name, params=place(name.params, mesh))
    if name.startswith(SPARSE):
        return sparsified(target, named_policy(name.removeprefix(SPARSE)))
    return quantised(target) if name == INT8 else load(name, dtype=activation_dtype(target.params["target"]), mesh=mesh)


def deepest(drafter: Drafter, ladder: Ladder) -> int:
    """Returns an upper bound on the depth of what is drafted."""
    if isinstance(drafter, Hybrid):
        return max(drafter.deepest(tree) for tree in ladder.trees)
    return max(tree.levels for tree in ladder.trees)


def drafted(
    name: str,
    setup: Setup,
    drafter: Drafter,
    shared: Any,
    *,
    ladder: Ladder | None = None,
    reach: Reach | None = None,
) -> Method:
    """Makes a method of a drafter, which proposes a tree at each step.

    Args:
      name: of the method.
      setup: the model and the options.
      drafter: what proposes.
      shared: what the rows share of it at first.
      ladder: the trees; None makes those that the options name.
      reach: of trees that are sized; None for that of `REACH`.

    Raises:
      ValueError: there is no such tree, or it or the drafter does not go with the model.
      OSError: a file with a tree or a cost curve cannot be read.
    """
    ladder = ladder or make_ladder(
        setup.model,
        setup.draft.tree,
        method=name,
        reach=reach or REACH.get(name),
        batch=setup.batch,
        slots=setup.slots,
        sampled=setup.sampled,
        costs=setup.draft.costs,
    )
    check_blocks(setup.model, name, ladder, branches=getattr(drafter, "branches", False))
    check_taps(setup.model, name, drafter.needs)
    strategy = Speculative(
        target=setup.model.definition,
        drafter=drafter,
        levels=deepest(drafter, ladder),
        verification=VERIFICATIONS[setup.draft.verify],
        sampled=setup.sampled,
        log_probs=setup.log_probs,
        tile=tile_rows(),
        narrows=narrows() and getattr(drafter, "varies", False),
    )
    trees = Trees(ladder=ladder.trees, choice=jnp.asarray(ladder.first, jnp.int32), sizing=ladder.sizing)
    return Method(
        name,
        strategy,
        setup.model.params,
        {"trees": trees, "drafter": shared},
        source=ladder.source,
        curve=ladder.curve,
        # Where trees bear on the text, time must not.
        follower=ladder.follower if strategy.exact else None,
    )
