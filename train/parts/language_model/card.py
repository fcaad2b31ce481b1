"""The model card that goes with exported weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from train.run.provenance import made_by
from train.run.settings import Settings

TEMPLATE = """\
---
library_name: jax_smash
pipeline_tag: text-generation
language: en
---
# A small language model for trying out decoding methods

{family} family, {layers} layers, width {width}, {heads} query and {kv_heads} key-value heads of width {head}, MLP width
{mlp}, vocabulary {vocabulary}, {tie}, rope base {base:g}. Weights are stored in bfloat16.
It tells short stories and holds short dialogues; it knows nothing, and its limits are those of its size. Training rows
were {length} tokens long.

## Training

| | |
|---|---|
| Begun with | {began} |
| Slots trained on | {slots:,}, a few per cent of them padding |
| Steps | {step} of {steps} planned, {batch_size} rows of {length} tokens each |
| Held-out loss of these weights | {loss:.4f} nats a token (perplexity {perplexity:.2f}) |
| By source | {by_source} |
| Answers of recall tasks | count {answer_weight:g} times |
| What the model's own texts say again | {own} |
| Optimiser | {optimiser} |
| Precision | {precision} products, float32 weights |
| Seed | {seed} |
| Code | {code} |
| Tokenizer | byte-level BPE, SHA-256 {tokenizer_sha256} |

```
python -m train.base --config CONFIG --packed PACKED --tokenizer TOKENIZER --output RUN \\
  --steps {steps} --batch-size {batch_size} --seed {seed}{init_from}
```
{sources}
## Greedy samples
"""


def model_card(
    settings: Settings,
    index: dict[str, Any],
    samples: Sequence[tuple[str, str]],
    *,
    step: int,
    losses: tuple[float, dict[str, float]],
    sources: str = "",
) -> str:
    """Returns the card as Markdown.

    Args:
      settings: of the run.
      index: of the packed rows.
      samples: prompts and their continuations.
      step: steps that made the weights.
      losses: held-out losses of the stored weights in nats a token, over all and of each source.
      sources: Markdown on the text and its licences.
    """
    model, length = settings.model, settings.length
    head = TEMPLATE.format(
        family=model.family.capitalize(),
        layers=model.num_layers,
        width=model.d_model,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head=model.head_width,
        mlp=model.mlp_width,
        vocabulary=model.vocab_size,
        tie="tied embeddings" if model.tied_head else "a head of its own",
        base=model.rope.base,
        length=length,
        began=_began(settings),
        init_from=" --init-from START/model" if settings.init_sha256 else "",
        slots=step * settings.batch_size * length,
        step=step,
        steps=settings.steps,
        batch_size=settings.batch_size,
        loss=losses[0],
        perplexity=math.exp(losses[0]),
        by_source=", ".join(f"{name} {loss:.2f}" for name, loss in losses[1].items()),
        optimiser=settings.optimiser.described(),
        precision=settings.dtype,
        answer_weight=settings.answer_weight,
        own=_own(settings),
        seed=settings.seed,
        code=made_by(),
        tokenizer_sha256=index["tokenizer_sha256"],
        sources=f"\n## Text\n\n{sources.strip()}\n" if sources else "",
    )
    return head + "".join(f"\n> **{prompt}** {_quoted(text)}\n" for prompt, text in samples)


def _began(settings: Settings) -> str:
    if settings.init_sha256:
        return f"the weights of an earlier run, SHA-256 {settings.init_sha256}"
    return "random weights" + (" that look back (`train/parts/language_model/lookback.py`)" if settings.recall else "")


def _own(settings: Settings) -> str:
    if not settings.own_rows:
        return "–"
    share = f"{settings.own_rows} of {settings.batch_size} rows, written anew every {settings.own_every} steps"
    return f"is made less likely (`train/data/own_texts.py`): {share}, counting {settings.circle_weight:g} times"


def _quoted(text: str) -> str:
    return text.strip().replace("\n", "\n> ")
