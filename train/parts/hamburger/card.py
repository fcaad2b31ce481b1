"""The card that goes with trained modules."""

from __future__ import annotations

from typing import Any

from train.parts.hamburger.settings import SmashSettings
from train.run.provenance import made_by

TEMPLATE = """\
---
library_name: jax_smash
pipeline_tag: text-generation
language: en
---
# HAMburger modules: several tokens in one cache slot

For a base of the {family} family with {layers} layers and width {width}. {holds}

| | |
|---|---|
| Embedder | {embedder} |
| Micro-step decoder | {micro_layers} layers of the base's shape over the outputs of its layers {tapped} (from 0) |
| Tokens of a slot | at most {micro_steps} |
| Base | fingerprint of its weights {base_fingerprint} |
| Tokenizer | SHA-256 {tokenizer_sha256} |

## Training

| | |
|---|---|
| Modules begun with | {began} |
| Base begun with | SHA-256 of its weights {base_sha256} |
| Tokens trained on | {tokens:,} |
| Steps | {step} of {steps} planned, {batch_size} rows of {length} slots each |
| Segmentation | {rule}, {tokens_a_group:.2f} tokens a group of replies |
| Held-out loss of these weights | {loss:.4f} nats a token, {stop_weight:g} times the stop head's among them |
| By source | {by_source} |
| Groups end, for the stop head | {stops} |
| Groups cut by chance | {cut_share:g} of the places where a token joins the one before |
| Documents without groups up to some place | {unfused_share:g} of all, by chance |
| The token behind a group, as the micro-step decoder's next | counts {beyond_weight:g} |
| Weights of answers | {answer_weight:g} |
| The base | {base} |
| Divergence from {teacher} | counts {kl_weight:g} |
| Optimiser | {optimiser} |
| Precision | {precision} products, float32 weights, stored in bfloat16 |
| Seed | {seed} |
| Code | {code} |

A base fine-tuned on as many tokens of the same data is what to compare with: `python -m train.base --init-from BASE`
on the same folder, with {tokens:,} / (batch_size · length) steps.

`smasher.json` carries the settings of decoding. As exported it names none, and the defaults are careful ones;
`python -m eval.calibrate` measures right answers by settings and writes the chosen one.
{sources}"""

STOPS = {
    "groups": "where the segmentation ends them",
    "own": "where the segmentation ends them, and before a token that the micro-step decoder gets wrong",
}

HOLDS = {
    "trained": "This folder holds the base as well, trained together with them.",
    "lora": "This folder holds the base as well, with the low-rank changes that it learned merged in.",
    "frozen": "The base stays as it is, and is not in this folder.",
}


def hamburger_card(
    settings: SmashSettings,
    segmentation: dict[str, Any],
    *,
    step: int,
    tokens: int,
    losses: tuple[float, dict[str, float]],
    base_fingerprint: str,
    sources: str = "",
) -> str:
    """Returns the card as Markdown.

    Args:
      settings: of the run.
      segmentation: how the data was segmented, from its index.
      step: steps that made the weights.
      tokens: that were trained on.
      losses: held-out losses of the stored weights in nats a token, over all and of each source.
      base_fingerprint: of the weights of the base that goes with the modules.
      sources: Markdown on the text and its licences.
    """
    model, smash = settings.model, settings.smash
    counts = [count for name, count in segmentation["statistics"].items() if name.startswith("train-")]
    groups = sum(sum(count["group_lengths"]) for count in counts)
    return TEMPLATE.format(
        family=model.family.capitalize(),
        layers=model.num_layers,
        width=model.d_model,
        holds=HOLDS[settings.base],
        embedder={"mean": "the mean of a group's vectors"}.get(smash.embedder, f"{smash.embedder_heads} heads"),
        micro_layers=smash.micro_layers,
        tapped=", ".join(map(str, smash.tapped_layers)),
        micro_steps=smash.micro_steps,
        base_fingerprint=base_fingerprint,
        base_sha256=settings.init_sha256,
        tokenizer_sha256=smash.tokenizer_sha256,
        tokens=tokens,
        step=step,
        steps=settings.steps,
        batch_size=settings.batch_size,
        length=settings.length,
        rule=segmentation["rule"],
        tokens_a_group=sum(count["reply_tokens"] for count in counts) / max(groups, 1),
        loss=losses[0],
        stop_weight=settings.stop_weight,
        cut_share=settings.cut_share,
        unfused_share=settings.unfused_share,
        beyond_weight=settings.beyond_weight,
        stops=STOPS[settings.stop_target],
        by_source=", ".join(f"{name} {loss:.2f}" for name, loss in losses[1].items()),
        answer_weight=settings.answer_weight,
        base=_base(settings),
        began=f"those of an earlier run, SHA-256 {settings.modules_sha256}"
        if settings.modules_sha256
        else "random ones",
        teacher=f"a teacher, SHA-256 of its weights {settings.teacher_sha256}"
        if settings.teacher_sha256
        else "the base that the run began with",
        kl_weight=settings.kl_weight,
        optimiser=settings.optimiser.described(of="of the modules "),
        precision=settings.dtype,
        seed=settings.seed,
        code=made_by(),
        sources=f"\n## Text\n\n{sources.strip()}\n" if sources else "",
    )


def _base(settings: SmashSettings) -> str:
    rate = f"at {settings.base_rate:g} of the modules' learning rate"
    return {
        "trained": f"trained, {rate}",
        "lora": f"low-rank changes of rank {settings.rank}, scaled by {settings.alpha:g} / {settings.rank}, {rate}",
        "frozen": "frozen",
    }[settings.base]
