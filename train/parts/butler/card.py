"""The card that goes with trained predictors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jax_smash.models.predictors import PredictorConfig
from train.parts.butler.settings import ButlerSettings
from train.parts.part import Ended
from train.run.provenance import made_by

TEMPLATE = """\
---
library_name: jax_smash
pipeline_tag: text-generation
language: en
---
# Predictors of attention: which entries of a cache their base will attend to

For a base of the {family} family with {layers} layers and width {width}. The base stays as it is, and is not in this
folder.
{predictors}
## What they were made for

| | |
|---|---|
| Base | fingerprint of its weights {base_fingerprint} |
| Tokenizer | SHA-256 {tokenizer_sha256} |

## Training

| | |
|---|---|
| Base's files | SHA-256 {base_sha256} |
| Tokens trained on | {tokens:,} |
| Steps | {step} of {steps} planned, {batch_size} rows of {length} tokens each |
| Learned from | one query in {query_stride} of a row{rounded} |
| Loss | {loss_of} |
| Held-out loss of all predictors | {loss:.4f} |
| By source | {by_source} |
| Held-out queries | one in {measured} of a row |
| Optimiser | {optimiser} |
| Precision | {precision} products, float32 weights, stored in bfloat16 |
| Seed | {seed} |
| Code | {code} |
{sources}"""

PREDICTOR = """
## `{name}`

{about}

| | |
|---|---|
| Form | `{kind}`: {sizes} |
| Parameters | {parameters:,} |
| Layers before the first that is predicted | {dense} |
| Held-out loss of these weights | {loss:.4f} |
| Held-out recall | {recall} |
"""

ABOUT = {
    "per_head": "Scores every entry for each query head of each layer, from one residual of the base.",
    "grouped": "Scores every entry for each KV head, from queries made every few layers and projected keys.",
    "low_rank": "Scores every entry for each query head, from the base's own queries and keys, both projected.",
    "gate": "Scores every page of entries for each KV head, from the base's queries and its pooled keys.",
}

LOSSES = {
    "divergence": "what the predicted distribution loses of the base's attention, nats an entry",
    "logits": "squared differences of scores before the softmax",
}


def butler_card(settings: ButlerSettings, ended: Ended, *, parameters: Mapping[str, int], base_fingerprint: str) -> str:
    """Returns the card as Markdown.

    Args:
      settings: of the run.
      ended: how the run ended.
      parameters: how many each predictor has.
      base_fingerprint: of the base's weights.
    """
    model = settings.model
    sections = (_section(name, config, parameters[name], settings, ended) for name, config in settings.configs.items())
    return TEMPLATE.format(
        family=model.family.capitalize(),
        layers=model.num_layers,
        width=model.d_model,
        predictors="".join(sections),
        base_fingerprint=base_fingerprint,
        tokenizer_sha256=settings.tokenizer_sha256,
        base_sha256=settings.init_sha256,
        tokens=ended.tokens,
        step=ended.step,
        steps=settings.steps,
        batch_size=settings.batch_size,
        length=settings.length,
        query_stride=settings.query_stride,
        rounded=f", keys of {settings.key_bits} bits a number" if settings.key_bits else "",
        measured=settings.evaluated().query_stride,
        loss_of=LOSSES[settings.loss],
        loss=ended.losses[0],
        by_source=", ".join(f"{name} {loss:.3f}" for name, loss in ended.losses[1].items()),
        optimiser=settings.optimiser.described(),
        precision=settings.dtype,
        seed=settings.seed,
        code=made_by(),
        sources=f"\n## Text\n\n{ended.sources.strip()}\n" if ended.sources else "",
    )


def _section(name: str, config: PredictorConfig, parameters: int, settings: ButlerSettings, ended: Ended) -> str:
    """Returns what the card says of one predictor."""
    base = {"d_model", "num_layers", "num_heads", "num_kv_heads", "head_width"}
    own = [field.name for field in dataclasses.fields(config) if field.name not in base]
    what = "pages" if config.page_size > 1 else "entries"
    layers = f", from layer {settings.recall_layer} on" if settings.recall_layer else ""
    found, control = (ended.means.get(f"{name} {of}", 0.0) for of in ("recall", "recent_recall"))
    return PREDICTOR.format(
        name=name,
        about=ABOUT[config.kind],
        kind=config.kind,
        sizes=", ".join(f"{field} {getattr(config, field):g}" for field in own),
        parameters=parameters,
        dense=config.first_layer,
        loss=ended.means.get(f"{name} loss", 0.0),
        recall=f"{found:.3f} of the {settings.recall_share:.0%} of {what} that a head attends to most, sinks left out, "
        f"from position {settings.recall_from} on{layers}; the last {what}, as many, hold {control:.3f}",
    )
