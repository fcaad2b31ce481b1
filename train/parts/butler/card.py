"""The card that goes with a trained predictor."""

from __future__ import annotations

import dataclasses

from train.parts.butler.settings import ButlerSettings
from train.parts.part import Ended
from train.run.provenance import made_by

TEMPLATE = """\
---
library_name: jax_smash
pipeline_tag: text-generation
language: en
---
# A predictor of attention: which entries of a cache its base will attend to

{about} For a base of the {family} family with {layers} layers and width {width}. The base stays as it is, and is not
in this folder.

| | |
|---|---|
| Form | `{kind}`: {sizes} |
| Parameters | {parameters:,} |
| Layers before the first that is predicted | {dense} |
| Base | fingerprint of its weights {base_fingerprint} |
| Tokenizer | SHA-256 {tokenizer_sha256} |

## Training

| | |
|---|---|
| Base's files | SHA-256 {base_sha256} |
| Tokens trained on | {tokens:,} |
| Steps | {step} of {steps} planned, {batch_size} rows of {length} tokens each |
| Loss | {loss_of} |
| Held-out loss of these weights | {loss:.4f} |
| By source | {by_source} |
| Held-out recall | {recall} |
| Optimiser | {optimiser}, b1 {b1}, b2 {b2}, weight decay {weight_decay} on matrices, clip {clip}; peak learning rate \
{learning_rate:g}, {warmup} steps of warm-up, cosine to {final:g} of the peak |
| Precision | {precision} products, float32 weights, stored in bfloat16 |
| Seed | {seed} |
| Code | {code} |
{sources}"""

ABOUT = {
    "per_head": "Scores every entry for each query head of each layer, from one residual of the base.",
    "grouped": "Scores every entry for each KV head, from queries made every few layers and projected keys.",
    "gate": "Scores every page of entries for each KV head, from the base's queries and its pooled keys.",
}

LOSSES = {
    "divergence": "what the predicted distribution loses of the base's attention, nats an entry",
    "logits": "squared differences of scores before the softmax",
}


def butler_card(settings: ButlerSettings, ended: Ended, *, parameters: int, base_fingerprint: str) -> str:
    """Returns the card as Markdown.

    Args:
      settings: of the run.
      ended: how the run ended.
      parameters: of the predictor.
      base_fingerprint: of the base's weights.
    """
    model, config, optimiser = settings.model, settings.config, settings.optimiser
    base = {"d_model", "num_layers", "num_heads", "num_kv_heads", "head_width"}
    own = [field.name for field in dataclasses.fields(config) if field.name not in base]
    return TEMPLATE.format(
        about=ABOUT[config.kind],
        family=model.family.capitalize(),
        layers=model.num_layers,
        width=model.d_model,
        kind=config.kind,
        sizes=", ".join(f"{name} {getattr(config, name):g}" for name in own),
        parameters=parameters,
        dense=config.first_layer,
        base_fingerprint=base_fingerprint,
        tokenizer_sha256=settings.tokenizer_sha256,
        base_sha256=settings.init_sha256,
        tokens=ended.tokens,
        step=ended.step,
        steps=settings.steps,
        batch_size=settings.batch_size,
        length=settings.length,
        loss_of=LOSSES[settings.loss],
        loss=ended.losses[0],
        by_source=", ".join(f"{name} {loss:.3f}" for name, loss in ended.losses[1].items()),
        recall=_recall(settings, ended),
        optimiser={"adamw": "AdamW", "muon": "Muon for the layers' matrices, AdamW for the rest"}[optimiser.name],
        precision=settings.dtype,
        seed=settings.seed,
        code=made_by(),
        sources=f"\n## Text\n\n{ended.sources.strip()}\n" if ended.sources else "",
        **{name: getattr(optimiser, name) for name in ("b1", "b2", "weight_decay", "clip", "learning_rate")},
        **{name: getattr(optimiser, name) for name in ("warmup", "final")},
    )


def _recall(settings: ButlerSettings, ended: Ended) -> str:
    what = "pages" if settings.config.page_size > 1 else "entries"
    found, control = (ended.means.get(name, 0.0) for name in ("recall", "recent_recall"))
    return (
        f"{found:.3f} of the {settings.recall_share:.0%} of {what} that a head attends to most, sinks left out, from "
        f"position {settings.recall_from} on; the last {what}, as many, hold {control:.3f}"
    )
