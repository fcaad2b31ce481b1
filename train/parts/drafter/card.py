"""The card that goes with a trained drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from train.parts.drafter.objective import RANKS
from train.parts.drafter.settings import DrafterSettings
from train.parts.part import Ended
from train.run.provenance import made_by

TEMPLATE = """\
---
library_name: jax_smash
pipeline_tag: text-generation
---
# {title}

For a target of the {family} family with {layers} layers and width {width}, and for the weights alone that have this
fingerprint. Drafted text is the target's own: a drafter decides how fast it comes.

| | |
|---|---|
| Target | fingerprint of its weights {base_fingerprint} |
| Trained on | rows of {length} tokens; of later ones the target may keep fewer |
{about}

```
{command}
```

## Training

| | |
|---|---|
| Tokens of the whole run | {tokens:,} |
| Steps | {step} of {steps} planned, {batch_size} rows of {length} tokens each |
| Replies | what stands behind {begins!r} up to {ends!r}; all of a text without one |{left_out}
| Chosen | {chosen} |
| Held-out loss of these weights | {loss:.4f} nats a token |
| By source | {by_source} |
| Optimiser | {optimiser} |
| Precision | {precision} products, float32 weights, stored in bfloat16{states} |
| Seed | {seed} |
| Code | {code} |

Shares of held-out entries whose target token is among the drafter's likeliest, by depth; at depth 2 and below, behind
the text's own tokens:

| Depth | {ranks} |
|---|{rules}
{accuracies}
{sources}"""

CHOSEN = (
    "step {step}: of the steps that were evaluated it drafted most tokens in a row, {score:.2f}, on documents that are "
    "neither trained on nor reported on"
)


def drafter_card(
    settings: DrafterSettings,
    ended: Ended,
    *,
    title: str,
    about: Mapping[str, str],
    command: str,
    base_fingerprint: str,
    depths: int,
    left_out: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Returns the card as Markdown.

    Args:
      settings: of the run.
      ended: how it ended; its means hold the accuracies, as `objective.tally` names them.
      title: the card's.
      about: rows on the drafter, by their heads.
      command: that decodes with it.
      base_fingerprint: of the target's weights.
      depths: that the drafter drafts.
      left_out: records of prompts that an evaluation asks too, as `data.overlap.left_out_of` returns them, each with
        the `file` of answers; nothing is told without.
    """
    model = settings.model
    rows = [
        f"| {depth} | " + " | ".join(f"{ended.means[f'top{rank}_{depth}']:.3f}" for rank in range(1, RANKS + 1)) + " |"
        for depth in range(1, depths + 1)
    ]
    return TEMPLATE.format(
        title=title,
        family=model.family.capitalize(),
        layers=model.num_layers,
        width=model.d_model,
        base_fingerprint=base_fingerprint,
        about="\n".join(f"| {head} | {text} |" for head, text in about.items()),
        command=command,
        tokens=ended.tokens,
        step=ended.step,
        steps=settings.steps,
        batch_size=settings.batch_size,
        length=settings.length,
        begins=settings.reply_begins,
        ends=settings.reply_ends,
        left_out="".join(f"\n| Prompts left out | {_told(record)} |" for record in left_out),
        chosen="the last step" if ended.score is None else CHOSEN.format(step=ended.step, score=ended.score),
        loss=ended.losses[0],
        by_source=", ".join(f"{name} {loss:.2f}" for name, loss in ended.losses[1].items()),
        optimiser=settings.optimiser.described(),
        precision=settings.dtype,
        states=f"; the target's states kept in {settings.states}" if settings.states else "",
        seed=settings.seed,
        code=made_by(),
        ranks=" | ".join(f"top {rank}" for rank in range(1, RANKS + 1)),
        rules="---|" * RANKS,
        accuracies="\n".join(rows),
        sources=f"\n## Text\n\n{ended.sources.strip()}\n" if ended.sources else "",
    )


def _told(record: Mapping[str, Any]) -> str:
    return (
        f"{record['left_out']:,} of {record['of']:,} for {record['file']}: they share {record['words']} words in a row "
        f"with {', '.join(record['sha256'])}"
    )
