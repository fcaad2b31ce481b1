"""What decides how many tokens a forward gives: what was seen before, the tree's shape, the temperature, the task."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from eval.drafting.acceptance_runs import Answer, Asking, by_category, cut, figures, with_drafter, with_tree
from eval.drafting.recycling_reference import ReferenceRecycling
from eval.drafting.told_trees import told_tree
from eval.drafting.trained import Named
from eval.prompts.question_sets import Question, turn_tokens
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, Method, make_method

Row = dict[str, Any]
Advance = Callable[[], None]

TEMPLATE = "recycling-80"
BASELINE, RECYCLING = Named("ar", "ar"), Named("recycling", "recycling")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a study is made of.

    Attributes:
      asking: the model, and how it is asked.
      questions: that fit.
      methods: that draft.
      trees: names of trees.
      temperatures: of sampling; 0 takes the likeliest token.
      draft: options of drafting beside the tree; each method is given those that it takes.
      seen: questions that are answered before the measured ones, in the cold-start study.
      widths, depths: of the cuts of the template.
      chains: trees have the chain of as many nodes beside them.
      done: rows of an earlier run, which are not made again.
      on_rows: called with the rows so far after each tree.
    """

    asking: Asking
    questions: Sequence[Question]
    methods: Sequence[Named]
    trees: Sequence[str]
    temperatures: Sequence[float]
    draft: DraftOptions
    seen: Sequence[int]
    widths: Sequence[int]
    depths: Sequence[int]
    chains: bool = True
    done: Sequence[Row] = ()
    on_rows: Callable[[list[Row]], None] = lambda rows: None

    def method(self, named: Named, tree: str = "auto", *, sampled: bool = False) -> Method:
        """Makes a method with those options that it takes."""
        return make_method(
            self.asking.model,
            named.method,
            sampled=sampled,
            draft=named.options(dataclasses.replace(self.draft, tree=tree)),
            smash=named.filled,
            batch=self.asking.batch_size,
            slots=self.asking.slots,
        )


def trees_and_chains(plan: Plan, advance: Advance) -> list[Row]:
    """Returns a row a temperature, method, tree and category: the tree's figures, and its chain's and plain decoding's.

    The chain has as many nodes as the tree, and the same drafter.
    """
    rows = list(plan.done)
    there = {(row["temperature"], row["method"], row["tree"]) for row in rows}
    for temperature in plan.temperatures:
        sampled = temperature > 0
        plain, _ = plan.asking.answers(plan.method(BASELINE, sampled=sampled), plan.questions, temperature=temperature)
        advance()
        if (temperature, BASELINE.name, None) not in there:
            for group, answers in by_category(plain).items():
                rows.append(_row(BASELINE.name, None, temperature, group, answers))
        for named in plan.methods:
            for tree in named.trees(plan.trees):
                told = told_tree(tree)
                if (temperature, named.name, told) in there:
                    advance()
                    continue
                method = plan.method(named, tree, sampled=sampled)
                answers, _ = plan.asking.answers(method, plan.questions, temperature=temperature)
                nodes = max((a.nodes for a in answers), default=0)
                beside = None
                if plan.chains and nodes and tree != f"chain-{nodes}":
                    alone = plan.method(named, f"chain-{nodes}", sampled=sampled)
                    beside, _ = plan.asking.answers(alone, plan.questions, temperature=temperature)
                advance()
                for group, mine in by_category(answers).items():
                    row = _row(named.name, told, temperature, group, mine) | {"nodes": nodes, **named.facts()}
                    rows.append(row | _beside(row, beside, group) | _differing(mine, by_category(plain)[group]))
                plan.on_rows(rows)
                PROGRAMS.forget()  # Of another tree nothing is called again.
    return rows


def cold_start(plan: Plan, advance: Advance) -> list[Row]:
    """Returns how many tokens a forward gives after so many questions were seen, with and without the prompt's part.

    The second half of the questions is measured, each from the same beginning; the first half comes before. A warm
    start is one more curve.
    """
    half = len(plan.questions) // 2
    lesson, measured = plan.questions[:half], plan.questions[half:]
    fresh = dataclasses.replace(plan, draft=dataclasses.replace(plan.draft, warm_start=None))
    method = fresh.method(RECYCLING, plan.trees[0])
    learners = {
        "prompt and text": method,
        "text alone": with_drafter(method, learn_prompt=False),
    }
    if plan.draft.warm_start is not None:
        learners["warm start"] = plan.method(RECYCLING, plan.trees[0])
    rows = []
    for learner, chosen in learners.items():
        memory, taken, tokens = chosen.memory, 0, 0
        for seen in sorted({n for n in plan.seen if n <= half}):
            more, memory = plan.asking.answers(chosen, lesson[taken:seen], memory=memory)
            taken, tokens = seen, tokens + sum(len(a.tokens) for a in more)
            answers, _ = plan.asking.answers(chosen, measured, memory=memory, carry=False)
            row = _row("recycling", told_tree(plan.trees[0]), 0.0, "all", answers)
            rows.append(row | {"learner": learner, "seen": seen, "seen_tokens": tokens})
            advance()
    return rows


def width_and_depth(plan: Plan, advance: Advance) -> list[Row]:
    """Returns the figures of Token Recycling's template cut to widths and depths, and of chains of as many nodes."""
    template = named_tree(TEMPLATE)
    sizes = [cut(template, width=width, depth=depth)[1] for width in plan.widths for depth in plan.depths]
    line = chain(max(sizes))
    method = plan.method(RECYCLING, TEMPLATE)
    chains: dict[int, list[Answer]] = {}
    rows = []
    for width in plan.widths:
        for depth in plan.depths:
            tree, nodes = cut(template, width=width, depth=depth)
            answers, _ = plan.asking.answers(with_tree(method, tree), plan.questions)
            if nodes not in chains:
                alone = with_tree(method, cut(line, depth=nodes)[0])
                chains[nodes], _ = plan.asking.answers(alone, plan.questions)
            row = _row("recycling", f"width {width}, depth {depth}", 0.0, "all", answers)
            row |= {"width": width, "depth": depth, "nodes": nodes}
            rows.append(row | _beside(row, chains[nodes], "all"))
            advance()
    return rows


def official(plan: Plan, advance: Advance) -> list[Row]:
    """Returns Token Recycling as its authors run it beside ours, on the same model, prompts, order and template.

    Ours learns from the prompt, or does not; both carry what they learned from question to question. Every row's text
    is compared with the first one's.
    """
    asking = plan.asking
    method = plan.method(RECYCLING, TEMPLATE)
    reference = ReferenceRecycling(asking.model, slots=asking.slots)
    authors: list[Answer] = []
    for question in plan.questions:
        said: list[str] = []
        for turn in range(len(question.turns)):
            prompt = turn_tokens(asking.model, question.turns[: turn + 1], said, chat=asking.chat)
            text = reference.generate(prompt, asking.max_new_tokens)
            said.append(asking.model.tokenizer.decode(text.tokens, skip_special_tokens=True))
            authors.append(Answer(question.category, text.tokens, said[-1], text.forwards))
    advance()
    rows = [_row("official", TEMPLATE, 0.0, group, mine) for group, mine in by_category(authors).items()]
    for name, chosen in {
        "ours, text alone": with_drafter(method, learn_prompt=False),
        "ours, prompt and text": method,
    }.items():
        answers, _ = asking.answers(chosen, plan.questions)
        for group, mine in by_category(answers).items():
            theirs = by_category(authors)[group]
            row = _row(name, TEMPLATE, 0.0, group, mine) | _differing(mine, theirs)
            rows.append(row | {"over_official": _ratio(row, figures(theirs))})
        advance()
    return rows


def rounds(study: str, plan: Plan) -> int:
    """Returns how often a study advances."""
    pairs = sum(len(named.trees(plan.trees)) for named in plan.methods)
    learners = 2 + (plan.draft.warm_start is not None)
    points = len({n for n in plan.seen if n <= len(plan.questions) // 2})
    counts = {"cold-start": learners * points, "width-depth": len(plan.widths) * len(plan.depths), "official": 3}
    return counts.get(study, len(plan.temperatures) * (1 + pairs))


def _row(method: str, tree: str | None, temperature: float, category: str, answers: Sequence[Answer]) -> Row:
    first = {"method": method, "tree": tree, "temperature": temperature, "category": category}
    return first | figures(answers)


def _beside(row: Row, beside: Sequence[Answer] | None, group: str) -> Row:
    if beside is None:
        return {}
    chained = figures(by_category(beside)[group])
    return {"chain_mean_accepted_tokens": chained["mean_accepted_tokens"], "over_chain": _ratio(row, chained)}


def _differing(answers: Sequence[Answer], others: Sequence[Answer]) -> Row:
    return {"differing": sum(a.tokens != b.tokens for a, b in zip(answers, others, strict=True))}


def _ratio(row: Row, other: Row) -> float | None:
    mine, theirs = row["mean_accepted_tokens"], other["mean_accepted_tokens"]
    return mine / theirs if mine is not None and theirs else None
