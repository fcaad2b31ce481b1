r"""How often trained drafters guess the target's token, by depth, and what drafting takes.

    python -m eval.drafters --model smollm2 --drafters runs/eagle/drafter runs/medusa/drafter \
      --packed PACKED --reply-begins $'<|im_start|>assistant\n' --reply-ends '<|im_end|>' --json drafters.json \
      --plot drafters.png
    python -m eval.drafters --model smollm2 --drafters runs/chimera/drafter --answers held-out.jsonl \
      --cost-repeats 20 --gram-slots 0 64 --json cost.json
    python -m eval.drafters --model smollm2 --drafters random:medusa random:eagle1 random:dflash --answers texts.jsonl \
      --cost-repeats 20 --json cost.json

Every drafter is decoded with over the same texts, its chain forced along each of them: at every token of a reply, with
what the target has read so far in its cache, depth d guesses the token behind the next d − 1 of the text. `top3` is the
share of these guesses in which the token that the target would say there is among the drafter's three likeliest. So a
drafter's training says the same of the same texts. Intervals are over texts.

Of a packed folder the held-out documents count that chose no step of a run (`--choice-share` is the training file's).
A file of answers (`train.regenerate` writes one) is read from its beginning. Training must not have seen them. Answers
that go in circles (fewer than 0.7 of their 4-grams distinct) are left out and counted: any drafter guesses them.

`--cost-repeats` also times what each drafter does in a step with a chain of `--depths` tokens, and plain steps in
turn with it; `base_forwards` is the median ratio. `--gram-slots` does so for caches of Chimera's grams.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.drafting.drafting_cost import BEHIND, Timed, cost_of, taken
from eval.drafting.forced import forced
from eval.drafting.head_accuracy import RANKS, Counts, accuracy_rows, ranker, read_by_target
from eval.drafting.held_out import Replies, Text, answered_texts, check_tokenizer, chosen, packed_texts
from eval.drafting.trained import HAMBURGER, MICRO, Trained, loaded_beside, trained_for
from eval.exact.exactness_report import inputs_of
from eval.reports.options import Numbers, Paths, check_least
from eval.reports.report import (
    check_folder,
    check_outputs,
    heading,
    print_table,
    progress,
    run_program,
    write_json,
    write_whole,
)
from jax_smash.loading import Model, sources
from jax_smash.methods import DraftOptions, Method, SmashOptions, make_method
from jax_smash.plan import tree_bytes

COLUMNS = ("drafter", "kind", "depth", "tokens", "texts", *(f"top{rank + 1}" for rank in range(RANKS)))
COSTS = ("drafter", "kind", "gram_slots", "nodes", "batch_size", "draft_ms", "plain_ms", "base_forwards")
REPORT, PICTURE = "drafters.json", "drafters.png"
"""What `output` holds."""

PROMPT_TOKENS = 128
"""Of the texts within which drafting is timed, at most, in front of the tokens that it is timed behind."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures trained drafters.

    Attributes:
      drafters: folders, as `jax-smash generate --drafter` takes them, or of HAMburger's modules. One in a folder
        `drafter` has its run's name. `random:KIND` is one with random weights, of kind eagle, eagle1, medusa, chimera,
        dflash or micro: what drafting takes does not depend on the weights.
      model: the base that all of them were trained for: a shipped model's name, a directory or a hub id.
      packed: folder that `train.pack` wrote with the base's tokenizer, whose held-out documents are read.
      answers: file of answers or texts, in place of packed.
      reply_begins: in packed chats, the text before each reply; without, all of a document counts.
      reply_ends: the text that a reply ends with; it is part of it.
      choice_share: of the held-out documents, how many chose a step in training and are left out.
      tokens: of replies that are judged at least, if there are so many.
      length: tokens of a text at most; longer ones are cut.
      depths: that are judged, or as many as a drafter has.
      batch_size: texts that are read together.
      cost_repeats: turns in which drafting is timed; 0 times nothing.
      cost_batch_size: rows that decode together where drafting is timed.
      gram_slots: grams whose codes Chimera keeps for each row; each number is timed.
      dtype: of the weights.
      json: file to write.
      plot: picture to write, a PNG.
      output: folder to make with both of them, in their place.
      overwrite: replace files that exist.
    """

    drafters: Paths
    model: str = "tiny"
    packed: Path | None = None
    answers: Path | None = None
    reply_begins: str = ""
    reply_ends: str = ""
    choice_share: float = 0.5
    tokens: int = 20_000
    length: int = 512
    depths: int = 4
    batch_size: int = 8
    cost_repeats: int = 0
    cost_batch_size: int = 1
    gram_slots: Numbers = (0,)
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    plot: Path | None = None
    output: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before weights are loaded.

        Raises:
          ValueError: an option is out of range, there are no texts or two kinds of them, or the packed folder is
            damaged or of another tokenizer.
          FileExistsError, FileNotFoundError: a file is missing, or an output cannot be written.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        check_least(self, tokens=1, length=3, depths=1, batch_size=1, cost_repeats=0, cost_batch_size=1)
        if not 0 <= self.choice_share < 1:
            raise ValueError(f"choice_share must be from 0 to below 1; got {self.choice_share}")
        if not self.drafters:
            raise ValueError("drafters must name one folder at least; got none")
        if (self.packed is None) == (self.answers is None):
            raise ValueError("drafters are judged on packed or on answers; got both or neither")
        for name in ("reply_begins", "reply_ends"):
            if getattr(self, name) and self.packed is None:
                raise ValueError(f"{name} goes with packed; a file of answers tells its replies")
        if self.reply_ends and not self.reply_begins:
            raise ValueError("reply_ends goes with reply_begins; without, all of a document counts")
        if not self.gram_slots or min(self.gram_slots) < 0:
            raise ValueError(f"gram_slots must be one or more, each at least 0; got {self.gram_slots}")
        if self.gram_slots != (0,) and not self.cost_repeats:
            raise ValueError(f"gram_slots change what drafting takes alone: give cost_repeats; got {self.gram_slots}")
        if self.packed is not None:
            check_tokenizer(self.packed, sources(self.model)[-1])
        elif not self.answers.is_file():
            raise FileNotFoundError(f"{self.answers} must be a file of answers; there is none")
        check_folder(self.output, self.json, self.plot, overwrite=self.overwrite)
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)

    def trained(self) -> list[Trained]:
        """Returns the drafters after checking that each is the base's own; of the base nothing is kept.

        Raises:
          ValueError: one is damaged or for another base, which the message names, or does not draft and is to be timed.
          FileNotFoundError: there is no such drafter or base.
        """
        found = trained_for(self.model, self.drafters, modules=True, random=True)
        idle = [drafter.name for drafter in found if getattr(drafter.config, "encodes_text", False)]
        if idle and self.cost_repeats:
            raise ValueError(f"{idle[0]} encodes texts and does not draft: it is judged without cost_repeats alone")
        return found

    def texts(self, model: Model) -> tuple[list[Text], int]:
        """Returns the texts that drafters are judged on, and how many answers were left out that go in circles.

        Raises:
          ValueError: the folder or the file is damaged, or has no reply.
        """
        if self.answers is not None:
            texts = answered_texts(self.answers, model)
        else:
            marks = [self._ids(model, text) for text in (self.reply_begins, self.reply_ends)]
            texts = packed_texts(self.packed, Replies(*marks), choice_share=self.choice_share)
        return chosen(texts, most_tokens=self.tokens, length=self.length, circles=self.answers is None)

    def _ids(self, model: Model, text: str) -> tuple[int, ...]:
        return tuple(model.tokenizer.encode(text, add_special_tokens=False)) if text else ()


def measure(settings: Settings) -> dict[str, Any]:
    """Measures; returns the report without its heading.

    Raises:
      ValueError: an option is wrong, or a drafter does not fit the base.
      OSError: a file cannot be read.
    """
    settings.check()
    drafters = settings.trained()
    model = loaded_beside(settings.model, drafters, dtype=jnp.dtype(settings.dtype))
    texts, left_out = settings.texts(model)
    methods = [_method(settings, model, drafter) for drafter in drafters]
    return {
        "model": {"name": model.name, "weight_bytes": tree_bytes(model.params)},
        "texts": len(texts),
        "left_out": left_out,
        "drafters": [
            {**drafter.facts(), "bytes": tree_bytes(method.params["smasher" if drafter.kind == MICRO else "drafter"])}
            for drafter, method in zip(drafters, methods, strict=True)
        ],
        "rows": _accuracies(settings, model, texts, drafters, methods),
        "costs": _costs(settings, model, texts, drafters) if settings.cost_repeats else [],
    }


def _method(settings: Settings, model: Model, drafter: Trained, gram_slots: int = 0) -> Method:
    """Returns the method that drafts a chain with a drafter; a group of HAMburger's modules is as long as it may be."""
    depths, batch = min(settings.depths, drafter.depths or settings.depths), settings.cost_batch_size
    if drafter.kind == MICRO:
        return make_method(model, HAMBURGER, smash=SmashOptions(mode="exact", group_length=depths + 1), batch=batch)
    modules = drafter.load(jnp.dtype(settings.dtype))
    draft = DraftOptions(tree=f"chain-{depths}", drafter=modules, gram_slots=gram_slots)
    return make_method(model, drafter.method, draft=draft, batch=batch)


def _accuracies(
    settings: Settings,
    model: Model,
    texts: Sequence[Text],
    drafters: Sequence[Trained],
    methods: Sequence[Method],
) -> list[dict[str, Any]]:
    """Returns the rows of all drafters; the base reads each text once for all of them."""
    taps = sorted({tap for method in methods for tap in method.strategy.drafter.needs.taps})  # type: ignore[attr-defined]
    ranks = [
        ranker(forced(method.strategy.drafter, d.config), min(settings.depths, d.depths or settings.depths))  # type: ignore[attr-defined]
        for d, method in zip(drafters, methods, strict=True)
    ]
    counts: list[list[Counts]] = [[] for _ in drafters]
    batches = -(-len(texts) // settings.batch_size)
    with progress("texts", batches * len(drafters)) as advance:
        for read in read_by_target(model, texts, taps, batch_size=settings.batch_size):
            for found, rank, method in zip(counts, ranks, methods, strict=True):
                found.append(Counts.of(read, rank(method.params, read)))
                advance()
    return [
        {"drafter": drafter.name, "kind": drafter.kind} | row
        for drafter, found in zip(drafters, counts, strict=True)
        for row in accuracy_rows(Counts.all(found))
    ]


def _costs(
    settings: Settings, model: Model, texts: Sequence[Text], drafters: Sequence[Trained]
) -> list[dict[str, Any]]:
    """Returns what drafting takes, a row a drafter and number of grams that are kept."""
    timed = [text.tokens[: PROMPT_TOKENS + BEHIND] for text in texts if len(text.tokens) > BEHIND]
    if not timed:
        raise ValueError(f"cost_repeats needs a text of more than {BEHIND} tokens; all are shorter")
    timed = [timed[i % len(timed)] for i in range(settings.cost_batch_size)]
    plain, named = make_method(model, "ar"), {}
    for drafter in drafters:
        for kept in settings.gram_slots if drafter.kind == "chimera" else (0,):
            named[f"{drafter.name} {kept}"] = (drafter, kept, _method(settings, model, drafter, kept))
    calls = {name: Timed(model, method, timed).call() for name, (_, _, method) in named.items()}
    seconds = taken({"": Timed(model, plain, timed).call()} | calls, repeats=settings.cost_repeats)
    return [
        {"drafter": drafter.name, "kind": drafter.kind, "gram_slots": kept, "batch_size": len(timed)}
        | {"nodes": method.strategy.levels}  # type: ignore[attr-defined]
        | cost_of(seconds[name], seconds[""])
        for name, (drafter, kept, method) in named.items()
    ]


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints tables, writes report and picture."""
    settings.check()
    report = heading("eval.drafters", arguments, dataclasses.asdict(settings))
    report |= {"inputs": inputs_of(settings.model, (settings.packed, settings.answers))}
    report |= measure(settings)
    title = f"{Path(settings.model).name}, {settings.dtype}: {report['texts']} texts"
    if report["left_out"]:
        title += f", {report['left_out']} left out that go in circles"
    print_table(title, report["rows"], COLUMNS)
    if report["costs"]:
        print_table("Drafting, in plain steps", report["costs"], COSTS)
    json, plot = settings.json, settings.plot
    if settings.output is not None:
        settings.output.mkdir(parents=True, exist_ok=True)
        json, plot = settings.output / REPORT, settings.output / PICTURE
    if json is not None:
        write_json(json, report)
    if plot is not None:
        from eval.drafting.drafters_plot import plot_drafters  # matplotlib takes a second to import.

        write_whole(plot, plot_drafters(report["rows"], title=title))


if __name__ == "__main__":
    run_program(Settings, main)
