"""The studies of sparse decoding by name: what each measures of a model, and how it is shown."""

import dataclasses
from collections.abc import Callable
from typing import Any

from eval.scores.engine import Engine
from eval.sparse.agreement import agreement
from eval.sparse.arms import BYTES, SLOTS, Arm, beside, policy_of, read_policy, settled
from eval.sparse.asked import read_task
from eval.sparse.calibration import as_tokens, head_recall, shares_by_recall
from eval.sparse.comparison import Comparison
from eval.sparse.learning import last_rows, learned, read_run
from eval.sparse.look_ahead import look_ahead
from eval.sparse.oracles import EvictingOracle, GuidedOracle
from eval.sparse.overhead import DENSE, check_positions, choice_ms, decode_speeds, training_seconds, with_choosing
from eval.sparse.rows import shown as compared
from eval.tasks.catalogue import TASKS
from eval.tasks.documents import document_set
from eval.tasks.selection import FIRST_POSITION
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import Oracle, Random, Selecting, TokenSelect, sparsified
from jax_smash.sparse.calibrate import save_shares

STEPS = (1, 2, 4, 8, 16, 32, 64)
"""Steps that a choice is looked back by."""

RECENCY = "recency"
"""The policy that reads the last slots, and has nothing to choose."""

TIMED = 20
"""Choices that are timed by themselves."""

Found = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Study:
    """A study by its name.

    Attributes:
      measure: takes the program's settings and a dense model; returns `rows` and what else is told.
      shown: makes a row flat enough for a table.
      plot: makes a picture of what was found, with a title.
    """

    measure: Callable[[Any, Model], Found]
    shown: Callable[[dict[str, Any]], dict[str, Any]]
    plot: Callable[[Found, str], bytes]


def _agreement(settings: Any, model: Model) -> Found:
    tokens, share = _tokens(settings, model, settings.num), settings.comparing().shares()[0]
    rows, table = agreement(model, tokens, share=share, first=FIRST_POSITION)
    return {"rows": [row | {"budget": share} for row in rows], "layers": table.tolist()}


def _look_ahead(settings: Any, model: Model) -> Found:
    tokens, share = _tokens(settings, model, settings.num), settings.comparing().shares()[0]
    steps = [n for n in STEPS if n < settings.length - FIRST_POSITION]
    rows = look_ahead(model, tokens, share=share, first=FIRST_POSITION, steps=steps)
    return {"rows": [row | {"budget": share} for row in rows]}


def _calibrated(settings: Any, model: Model) -> Found:
    texts = _tokens(settings, model, settings.num + settings.calibration)[settings.num :]
    rows: list[dict[str, Any]] = []
    for share in settings.comparing().shares():
        policies: dict[str, SparsePolicy] = {}
        for name in settings.policies:
            policy = calibratable(name, page_size=settings.page_size)
            sparse = sparsified(model, policy)
            arm = _arm(settings, name, sparse, share, settings.length)
            if arm.policy is None:
                raise ValueError(f"{name} cannot be calibrated at {share:.0%}: {arm.unmet}")
            tokens = as_tokens(texts, settings.length)
            recall = head_recall(beside(sparse, arm.policy), tokens, share=share, batch_size=settings.batch_size)
            path = settings.shares_file(name, share)
            told = {"policy": name, "share": share, "texts": len(texts), "length": settings.length}
            save_shares(path, shares_by_recall(recall, share), **told)
            policies |= {name: policy, f"{name}:shares={path.name}": _policy(settings, f"{name}:shares={path}")}
        found = _compared(settings, model, policies, budgets=(f"{share:.4%}",))
        rows += found if not rows else [row for row in found if row["policy"] != DENSE]
    return {"rows": rows}


def _oracles(settings: Any, model: Model) -> Found:
    policies = {
        "oracle": Oracle(budget=1.0),
        "oracle:evicting": EvictingOracle(budget=1.0),
        "oracle:previous-layer": GuidedOracle(budget=1.0, guide="previous"),
        "oracle:first-layer": GuidedOracle(budget=1.0, guide="first"),
        "random": Random(budget=1.0),
    }
    return {"rows": _compared(settings, model, policies, policies=("oracle",), tasks=("perplexity",))}


def _overhead(settings: Any, model: Model) -> Found:
    trained = []
    for run in settings.runs:
        told, lines = read_run(run)
        seconds = training_seconds(lines, told["batch_size"] * told["length"])
        trained.append({"policy": f"training of {run.name}", "training_seconds": seconds, "steps": told["steps"]})
    return {"rows": _speeds(settings, model, choices=True)["rows"] + trained}


def _predictors(settings: Any, model: Model) -> Found:
    assert model.config is not None
    curve = [row for run in settings.runs for row in learned(run, model.config)]
    return {"rows": last_rows(curve), "curve": curve}


def _speeds(settings: Any, model: Model, *, choices: bool = False) -> Found:
    """Returns bytes, milliseconds and tokens a second of each policy with as many slots, by length.

    Args:
      settings: of the program.
      model: a dense one.
      choices: time choices too: by themselves, and as what a step takes beyond one that reads the last slots.

    Raises:
      ValueError: a length does not fit the model, or a budget what a policy always reads; before anything is timed.
    """
    check_positions(model, settings.lengths, settings.new_tokens)
    share, rows = settings.comparing().shares()[0], []
    names = dict.fromkeys((*settings.policies, *((RECENCY,) if choices else ())))
    sparse = {name: sparsified(model, _policy(settings, name)) for name in names}
    arms_at = {n: {name: _arm(settings, name, sparse[name], share, n) for name in names} for n in settings.lengths}
    for length, arms in arms_at.items():
        for name, arm in arms.items():
            if arm.policy is None:
                raise ValueError(f"{name} cannot be timed at {share:.0%} of {length} slots: {arm.unmet}")
    for length, arms in arms_at.items():
        models = {DENSE: model}
        for name, arm in arms.items():
            assert arm.policy is not None
            models[name] = beside(sparse[name], arm.policy)
        found = decode_speeds(models, length=length, new_tokens=settings.new_tokens, repeats=settings.repeats)
        for row in with_choosing(found, RECENCY) if choices else found:
            if row["policy"] in arms:
                arm = arms[row["policy"]]
                row |= {
                    "budget": share,
                    "slots": arm.slots,
                    "share": arm.share,
                    "scorer_share": arm.scorer / arm.dense,
                    "predictor_bytes_per_step": arm.predictor,
                }
                row |= {"choice_ms": choice_ms(models[arm.name], length=length, repeats=TIMED)} if choices else {}
            rows.append(row)
    return {"rows": rows}


def _compared(settings: Any, model: Model, policies: dict[str, Any], /, **changes: Any) -> list[dict[str, Any]]:
    comparing = settings.comparing(**changes)
    assert model.tokenizer is not None
    drawn = comparing.drawn(lambda text: len(model.encode(text)))
    comparison = Comparison(model, policies, comparing.shares(), batch_size=settings.batch_size)
    return comparison.rows([read_task(name, drawn) for name in comparing.tasks])


def calibratable(name: str, *, page_size: int | None) -> Selecting:
    """Returns the policy of a name, which chooses slots for each head.

    Raises:
      ValueError: it does not, or its heads have shares already.
    """
    policy = read_policy(name, protocol="dense", page_size=page_size)
    # TokenSelect's heads share a choice.
    if not isinstance(policy, Selecting) or isinstance(policy, TokenSelect):
        raise ValueError(f"calibrated takes policies that choose slots a head; got {name}")
    if policy.head_shares is not None:
        raise ValueError(f"calibrated makes shares of heads itself; got {name}")
    return policy


def _policy(settings: Any, name: str) -> SparsePolicy:
    return read_policy(name, protocol="dense", page_size=settings.page_size)


def _arm(settings: Any, name: str, sparse: Model, share: float, length: int) -> Arm:
    assert sparse.config is not None
    equal = BYTES if settings.study == "calibrated" else SLOTS
    sizes = sparse.config, sparse.params["target"]
    return settled(name, policy_of(sparse), *sizes, share=share, length=length, equal=equal)


def _tokens(settings: Any, model: Model, count: int) -> list[list[int]]:
    documents = document_set(TASKS["perplexity"].shipped or "", count=count).documents
    engine = Engine(model)
    texts = [engine.encode_whole(document.text)[: settings.length] for document in documents]
    return as_tokens(texts, settings.length).tolist()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    flat = {k: v for k, v in row.items() if not isinstance(v, list)}
    if isinstance(row.get("interval"), dict):
        flat |= row["interval"]
    return flat | {"budget": f"{row['budget']:.0%}"} if row.get("budget") is not None else flat


def _plot_kinds(found: Found, title: str) -> bytes:
    from eval.sparse.study_plots import plot_kinds  # matplotlib takes a second to import.

    return plot_kinds(found["rows"], title=title, table=found.get("layers"))


def _plot_scores(found: Found, title: str) -> bytes:
    from eval.sparse.plot import plot_sparsity

    return plot_sparsity(found["rows"], title=title)


def _plot_speeds(found: Found, title: str) -> bytes:
    from eval.sparse.study_plots import plot_lines

    rows = [row for row in found["rows"] if "ms_per_step" in row]
    return plot_lines(rows, title=title, value="tokens_per_second", label="tokens a second, one row")


def _plot_overhead(found: Found, title: str) -> bytes:
    from eval.sparse.study_plots import plot_lines

    rows = [row for row in found["rows"] if "ms_per_step" in row]
    return plot_lines(rows, title=title, value="ms_per_step", label="milliseconds a step, one row")


def _plot_learned(found: Found, title: str) -> bytes:
    from eval.sparse.study_plots import plot_learned

    return plot_learned(found["rows"], found["curve"], title=title)


STUDIES: dict[str, Study] = {
    "agreement": Study(_agreement, _plain, _plot_kinds),
    "look-ahead": Study(_look_ahead, _plain, _plot_kinds),
    "calibrated": Study(_calibrated, compared, _plot_scores),
    "oracles": Study(_oracles, compared, _plot_scores),
    "overhead": Study(_overhead, _plain, _plot_overhead),
    "throughput": Study(_speeds, _plain, _plot_speeds),
    "predictors": Study(_predictors, _plain, _plot_learned),
}
"""The studies by name."""
