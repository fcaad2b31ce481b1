"""The claims and the numbers of the README. A new claim is an entry here and a report in docs/results."""

from collections.abc import Callable
from typing import Any

from eval.reports.claims import cells, layouts, pictures, table
from eval.reports.claims.claim import Claim, Figure, Rows
from eval.reports.claims.rows import where
from eval.reports.claims.stored import Report
from eval.reports.claims.table import Cell, Row

SMOLLM2 = "SmolLM2-135M-Instruct"

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Its categories, as Spec-Bench's file names them."""


def _accepted_bars(choose: Callable[[Rows], Rows], *, group: Cell, bar: Cell) -> Callable[[Rows], bytes]:
    """Returns what draws the mean accepted tokens of chosen rows, with the line of plain decoding."""
    accepted: dict[str, Any] = {"height": "mean_accepted_tokens", "label": "mean accepted tokens", "line": 1.0}
    return pictures.picture(pictures.bars, choose, group=group, bar=bar, **accepted)


def _by_task(batch: int) -> tuple[Claim, ...]:
    """Returns what is shown of a comparison by task: what a forward gives, and speed."""
    about: dict[str, Any] = {
        "reports": ("smollm2-by-task", "smollm2-by-task-*"),
        "choose": lambda rows: where(rows, batch_size=batch),
    }
    return (
        Claim(
            name=f"smollm2-accepted-b{batch}",
            title=f"{SMOLLM2}: tokens a forward by task, batch {batch}",
            text="Mean accepted tokens of greedy answers to Spec-Bench's questions: (new tokens − 1) over the forwards "
            "that decoded them, so that plain decoding has 1. Answers that go in circles are left out. `eagle-3m` and "
            "`chimera-3m` come with the package; `chain-N:least=P` stops where tokens are less likely to be kept.",
            **about,
            table=layouts.accepted_by_task,
            picture=_accepted_bars(layouts.trees_of, group=cells.category, bar=layouts.method_and_tree),
        ),
        Claim(
            name=f"smollm2-speed-b{batch}",
            title=f"{SMOLLM2}: tokens a second by task, batch {batch}",
            text="Tokens a second of decoding on the same questions, without the time to the first token; medians of "
            "repeats, whose number the report tells. Each method took turns with plain decoding of its own, whose "
            "speed stands beside its own; the row of plain decoding is the first of these. Speeds of different rows "
            "were measured at different times: the ratios of the next table compare methods.",
            **about,
            table=layouts.speed_by_task,
            picture=pictures.picture(
                pictures.bars,
                layouts.speeds_of,
                group=cells.category,
                bar=layouts.method_and_tree,
                height="tokens_per_second",
                label="tokens/s",
                interval="range",
            ),
        ),
        Claim(
            name=f"smollm2-speedup-b{batch}",
            title=f"{SMOLLM2}: times as fast as plain decoding by task, batch {batch}",
            text="The same speeds of decoding, each as a ratio to plain decoding of the same batch a moment before.",
            **about,
            table=layouts.speedup_by_task,
        ),
    )


def _automatic(batch: int) -> Claim:
    """Returns how fast trees are that are sized while decoding."""
    return Claim(
        name=f"smollm2-auto-b{batch}",
        title=f"{SMOLLM2}: automatic trees beside plain decoding, batch {batch}",
        text="Times as fast as plain decoding of the same batch a moment before, where trees are sized while decoding. "
        "Trees begin with no cost curve (auto), with the measured one (right), or with drafted steps at a third "
        "(cheap) or three times (dear) of what was measured. Every repeat begins without knowledge of costs.",
        reports=("smollm2-auto", "smollm2-auto-*"),
        table=layouts.speedup_by_task,
        choose=lambda rows: where(rows, batch_size=batch),
    )


def _trained() -> tuple[Claim, ...]:
    """Returns what is shown of trained drafters beside drafters that need no training."""
    accepted: dict[str, Any] = {"reports": ("smollm2-drafters", "smollm2-drafters-*")}
    early: dict[str, Any] = {"reports": ("smollm2-early", "smollm2-early-*")}
    return (
        Claim(
            name="smollm2-drafters",
            title=f"{SMOLLM2}: tokens a forward with trained drafters",
            text="Mean accepted tokens of answers to Spec-Bench's questions. Drafters were trained on 3M tokens of "
            "the model's own answers, `eagle1-3m` (EAGLE-1) on other and fewer answers, read six times; `hybrid+NAME` "
            "is method hybrid with a drafter. `eagle-3m` and `chimera-3m` come with the package. `recycling`, `suffix` "
            "and `hybrid` need no training. `confident-N` is EAGLE-2's tree of N nodes, another at each step. A "
            "hybrid's drafts branch in any tree, in 8 nodes named chain-8 too. Answers that go in circles are left "
            "out, and questions of more than 900 tokens are not asked. Typical acceptance writes other answers, and "
            "more that go in circles: each of its rows is of those that are left. Eight texts decode at once, which "
            "costs what learns from one text for the next, `recycling` above all (experiment 100).",
            **accepted,
            table=layouts.accepted_by_tree,
            picture=_accepted_bars(layouts.greedy_trees, group=cells.tree, bar=cells.method),
        ),
        Claim(
            name="smollm2-drafters-by-task",
            title=f"{SMOLLM2}: tokens a forward with trained drafters, by task",
            text="The greedy ones of the same answers by Spec-Bench's tasks: two in translation, three to six in each "
            "of the others. So few tell tasks apart only where they differ much. A tree of a fixed shape may keep less "
            "than a longer chain, as EAGLE-3's 16 nodes in mathematics do, and a hybrid less than its best part.",
            **accepted,
            table=layouts.accepted_by_task,
        ),
        Claim(
            name="smollm2-categories",
            title=f"{SMOLLM2}: tokens a forward with trained drafters, by MT-bench's categories",
            text="Of two questions of each category, which ask twice: three or four answers each, without those that "
            "go in circles. So few answers tell categories apart only where they differ much.",
            reports=("smollm2-categories", "smollm2-categories-*"),
            choose=lambda rows: where(rows, category=MT_BENCH),
            table=layouts.accepted_by_task,
        ),
        Claim(
            name="smollm2-drafters-by-depth",
            title=f"{SMOLLM2}: drafts of chains that are kept, by depth",
            text="Of the tokens that were drafted at a depth behind kept ones, how many were kept too. Hybrids are "
            "left out, for their drafts branch.",
            **accepted,
            table=layouts.kept_by_depth,
        ),
        Claim(
            name="smollm2-early",
            title=f"{SMOLLM2}: tokens a forward of drafters after 0.48M tokens",
            text="Mean accepted tokens of answers to the same questions. All were trained on the same answers of the "
            "model, 160,297 tokens read three times: `eagle` is EAGLE-3, `eagle1` EAGLE-1, `dflash` DFlash's form, and "
            "`micro` HAMburger's decoder in mode `exact`, which drafts four tokens at most.",
            **early,
            table=layouts.accepted_by_tree,
            picture=_accepted_bars(layouts.greedy_trees, group=cells.tree, bar=cells.method),
        ),
        Claim(
            name="smollm2-early-by-task",
            title=f"{SMOLLM2}: tokens a forward of drafters after 0.48M tokens, by task",
            text="The same answers by Spec-Bench's tasks.",
            **early,
            table=layouts.accepted_by_task,
        ),
        Claim(
            name="smollm2-early-by-depth",
            title=f"{SMOLLM2}: drafts of chains that are kept after 0.48M tokens of training, by depth",
            text="Of the tokens that were drafted at a depth behind kept ones, how many were kept too.",
            **early,
            table=layouts.kept_by_depth,
        ),
        Claim(
            name="smollm2-heads",
            title=f"{SMOLLM2}: accuracy of trained drafters",
            text="How often the token that the model says is among a drafter's likeliest, at each depth behind a "
            "prefix of held-out answers: the model's own, of 128 tokens at most, to eight of Spec-Bench's questions a "
            "task, where question and answer have at most 512 tokens. Drafters named `-3m` were trained on 3M tokens, "
            "the others on 0.48M. Behind the first depth EAGLE, Chimera and HAMburger's decoder read the answer's own "
            "tokens; Medusa's heads and DFlash's places read none, and must know more by themselves. Answers that go "
            "in circles count here.",
            reports=("smollm2-heads", "smollm2-heads-*"),
            table=layouts.accuracies,
        ),
    )


def _curve(rows: Rows) -> bytes:
    """Draws right answers over tokens a slot, with the line of plain decoding."""
    plain = [row["score"] for row in rows if row["method"] == "ar"]
    return pictures.curves(
        layouts.arms_of_confidence(rows),
        x="output_compression",
        y="score",
        line=lambda row: f"confidence {row['confidence']:g}",
        point=lambda row: f"{row['token_confidence']:g}",
        labels=("output tokens a slot", "share of answers that are right"),
        level={"plain decoding": plain[0]} if plain else {},
    )


def _means_by_budget(rows: Rows) -> bytes:
    """Draws the mean of all tasks over shares of the cache's bytes, a line a policy, with that of dense decoding."""
    shown = [
        {**row, "bytes": 100 * row["budget"], "found": 100 * row["score"]} for row in layouts.means_by_policy(rows)
    ]
    return pictures.curves(
        sorted((row for row in shown if row["policy"] != "dense"), key=lambda row: (row["policy"], row["budget"])),
        x="bytes",
        y="found",
        line=lambda row: row["policy"],
        labels=("per cent of the cache's bytes", "per cent that is found"),
        level={row["policy"]: row["found"] for row in where(shown, policy="dense")},
    )


CLAIMS = (
    *_by_task(1),
    *_by_task(8),
    _automatic(1),
    _automatic(8),
    Claim(
        name="smollm2-official",
        title=f"{SMOLLM2}: Token Recycling beside the published algorithm",
        text="Mean accepted tokens of Token Recycling as its authors run it and of ours, with the same tree of 80 "
        "nodes, on the same questions in the same order. Both keep what they learned from question to question.",
        reports=("smollm2-official", "smollm2-official-*"),
        table=layouts.published,
    ),
    *_trained(),
    Claim(
        name="smollm2-exactness",
        title=f"{SMOLLM2}: drafted text is plain decoding's",
        text="Texts of the exact methods below against plain decoding, greedy and sampled, sums over batch sizes. A "
        "divergence is a near-tie where both tokens lie within rounding of the best; an unexplained token is one that "
        "a plain forward would not have chosen. Processors: none, or all that there are, stop strings and a grammar "
        "among them. Variants are trees changed in ways that must not matter; faults are put in on purpose and must "
        "be found. `eagle-3m` and `chimera-3m` come with the package; `medusa`, `eagle1` and `dflash` were trained on "
        "0.2M tokens, and the decoder of `hamburger` on 0.16M, read three times.",
        reports=("smollm2-exactness", "smollm2-exactness-*"),
        table=layouts.exactness,
    ),
    Claim(
        name="smollm2-quality",
        title=f"{SMOLLM2}: quality, float32 and int8 weights",
        text="Differences are those of the same examples, so they are known better than either score.",
        reports=("smollm2-quality", "smollm2-quality-*"),
        table=layouts.weights,
    ),
    Claim(
        name="smollm2-sparse",
        title=f"{SMOLLM2}: policies of the cache at equal bytes",
        text="What a policy may read of the cache in a step, what it chooses by included; `oracle`, `recency` and "
        "`random` choose for nothing. A budget is not met where what a policy chooses by and what it always reads are "
        "more. Prompts of tasks are read whole, but texts of perplexity and `locations` by steps of the policy, with "
        "as many slots at their beginning as at their end. Multiple choice stands behind five solved questions, and 50 "
        "questions hardly tell policies apart. `wikitext2.jsonl` has a line for each article of over 6,000 characters "
        "of WikiText-2's validation text, its white space single spaces.",
        reports=("smollm2-sparse", "smollm2-sparse-*"),
        table=layouts.by_policy,
    ),
    Claim(
        name="smollm2-policies",
        title=f"{SMOLLM2}: RULER's tasks by policy of the cache at equal bytes",
        text="As above, of 512 tokens together: the share of a question's answers that stand in what is written, and "
        "the mean of all tasks, which are those of which dense decoding answers 10 points more than chance. "
        "`niah` are needles in a haystack, `vt` follows variables, `fwe` names the commonest words and `qa` answers "
        "questions.",
        reports=("smollm2-policies-*",),
        table=layouts.by_policy_on_ruler,
        picture=_means_by_budget,
    ),
    Claim(
        name="smollm2-long",
        title=f"{SMOLLM2}: RULER's tasks of 2,048 tokens by policy of the cache at equal bytes",
        text="As above; the predictors were trained on texts of 1,024 tokens.",
        reports=("smollm2-long-*",),
        table=layouts.by_policy_on_ruler,
    ),
    Claim(
        name="smollm2-ruler",
        title=f"{SMOLLM2}: RULER's tasks by dense decoding",
        text="The share of a question's answers that stand in what is written, of 1,024 tokens together; they are "
        "words and numbers that chance does not give. Where dense decoding finds less than 10%, the task cannot tell "
        "policies of the cache apart.",
        reports=("smollm2-ruler",),
        table=layouts.by_ruler_task,
    ),
    Claim(
        name="smollm2-recall",
        title=f"{SMOLLM2}: what policies find of what the model attends to",
        text="Of the half of the entries to which a query head attends most, the share that the policy reads; of a "
        "group of query heads, which read the same entries, those to which it attends most in sum. A mean over layers "
        "from the second on and over steps behind the first 256 tokens, sinks left out. `gate` and `quest` choose "
        "pages, and read fewer entries; `oracle` and `tokenselect` read every key to choose.",
        reports=("smollm2-recall", "smollm2-recall-*"),
        table=layouts.by_recall,
    ),
    Claim(
        name="smollm2-parity",
        title=f"{SMOLLM2}: the same GGUF file in transformers",
        text="Both sides read the file by themselves and compute in float32. Logits are compared at every place of the "
        "texts.",
        reports=("smollm2-parity",),
        table=layouts.parity,
    ),
    Claim(
        name="smollm2-startup",
        title=f"{SMOLLM2}: from the command to the first text",
        text="Wall-clock time of the command in the README's first line, in a fresh process.",
        reports=("smollm2-startup",),
        table=layouts.startup,
    ),
    Claim(
        name="tiny-speed",
        title="`tiny` and a shape of 96M parameters: plain decoding beside transformers",
        text="Greedy decoding in float32, batch 1, with the same weights and prompts.",
        reports=("tiny-speed", "llama-100m-speed"),
        table=layouts.speed_of_models,
    ),
    Claim(
        name="hamburger-defaults",
        title="`tiny` with HAMburger modules: arithmetic with every default",
        text="Blind groups with the settings that the modules carry, against plain decoding with the same weights.",
        reports=("hamburger-defaults",),
        table=layouts.fused_by_task,
    ),
    Claim(
        name="hamburger-tasks",
        title="`tiny` with HAMburger modules: quality and compression by task",
        text="Blind groups with the settings that the modules carry, against plain decoding with the same weights on "
        "the same questions. Tokens a slot are those of the output; where they are near 1, hardly anything is fused.",
        reports=("hamburger-tasks", "hamburger-tasks-*"),
        table=layouts.fused_by_task,
    ),
    Claim(
        name="hamburger-curve",
        title="`tiny` with HAMburger modules: the curve of the token confidence",
        text="What is lost and what is fused as a group may go on with less certain tokens; 0 trusts them all.",
        reports=("hamburger-curve", "hamburger-curve-*"),
        table=layouts.fused_curve,
        picture=_curve,
    ),
    Claim(
        name="hamburger-drift",
        title="`tiny` with HAMburger modules: errors in long outputs",
        text="Each text is read again by the plain base: a token is wrong where the base would have chosen another and "
        "rounding does not explain it.",
        reports=("hamburger-drift",),
        table=layouts.drift,
    ),
    Claim(
        name="hamburger-caps",
        title="HAMburger: the most that groups can gain, by arithmetic",
        text="Times as fast as plain decoding, where decoding waits for weights: groups of so many tokens, whose "
        "further tokens cost a micro-step each. Nothing is measured here.",
        reports=("hamburger-caps",),
        table=layouts.caps,
    ),
    Claim(
        name="kernels",
        title="Kernels beside XLA",
        text="Milliseconds of one call, medians of repeats in which the implementations take turns.",
        reports=("kernels-*",),
        table=layouts.kernels,
    ),
)
"""In the page's order."""


def _of_arithmetic(name: str, write: Callable[[Row], str], method: str = "hamburger") -> Figure:
    """Returns a number of the arithmetic questions of all lengths, decoded with every default."""

    def written(report: Report) -> str:
        (row,) = (row for row in report.rows if row["method"] == method and row["task"] == "all tasks")
        return write(row)

    return Figure(f"hamburger-{name}", "hamburger-defaults", written)


def _of_int8(name: str, task: str, metric: str) -> Figure:
    """Returns what int8 weights change in a score of SmolLM2."""

    def written(report: Report) -> str:
        (row,) = (
            row
            for row in report.rows
            if (row["task"], row["metric"], row["settings"]["weights"]) == (task, metric, "int8")
        )
        return cells.difference(row)

    return Figure(f"int8-{name}", "smollm2-quality", written)


FIGURES: tuple[Figure, ...] = (
    _of_arithmetic("plain", lambda row: f"{100 * row['score']:.1f}%", "ar"),
    _of_arithmetic("right", lambda row: f"{100 * row['score']:.1f}%"),
    _of_arithmetic("count", lambda row: f"{row['n']:,}"),
    _of_arithmetic("lost", cells.difference),
    _of_arithmetic("slot", table.number("output_compression")),
    _of_int8("questions", "all tasks", "accuracy"),
    _of_int8("text", "wikitext", "perplexity"),
)
"""Numbers that stand in sentences."""
