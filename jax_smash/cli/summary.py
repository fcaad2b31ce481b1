"""The last line of `jax-smash generate`: how long everything took, and what became of drafts and slots."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from jax_smash.decode.draft_report import Drafted
    from jax_smash.decode.groups import Smashed
    from jax_smash.serve.turn import Completion

SHOWN_DEPTHS = 8
"""Depths whose acceptance is shown."""


def summary(
    completions: list["Completion"], seconds: float, compiled: float, *, before: int = 0, base: "Path | None" = None
) -> str:
    """Returns one line on how long everything took.

    Args:
      completions: that were made.
      seconds: in all.
      compiled: of them spent on compilation.
      before: completions that an earlier run made.
      base: whose weights decoded, where several stand to choose from.
    """
    tokens = sum(c.new_tokens for c in completions)
    forwards = sum(c.target_forwards for c in completions)
    spent = seconds - compiled
    parts = [f"{tokens} new tokens in {spent:.2f} s", f"{tokens / spent:.1f} tokens/s"]
    if forwards:
        accepted = sum((c.mean_accepted_tokens or 0) * c.target_forwards for c in completions)
        parts.append(f"{accepted / forwards:.2f} tokens a forward")
    parts += _drafts([c.drafted for c in completions if c.drafted is not None])
    parts += _slots([c.smashed for c in completions if c.smashed is not None])
    parts.append(f"first token after {1e3 * max(c.time_to_first_token_s for c in completions):.0f} ms")
    parts.append(f"compiling took {compiled:.1f} s more")
    if before:
        parts.append(f"{before} texts were there before")
    if base is not None:
        parts.append(f"decoded by the base in {base}")
    return ", ".join(parts)


def _drafts(drafted: list["Drafted"]) -> list[str]:
    """Returns what there is to say of drafts: nodes a step, and the share that was kept of those tried, by depth."""
    if not drafted:
        return []
    nodes = sorted({d.nodes for d in drafted})
    tried = [sum(counts) for counts in zip(*(d.tried for d in drafted), strict=True)]
    kept = [sum(counts) for counts in zip(*(d.kept for d in drafted), strict=True)]
    shares = [f"{k / t:.0%}" for k, t in zip(kept, tried, strict=True) if t]
    said = f"{'–'.join(map(str, (nodes[0], nodes[-1])[: len(nodes)]))} drafted nodes a step ({drafted[0].source})"
    if not shares:
        return [said]
    return [said, f"kept by depth {' '.join(shares[:SHOWN_DEPTHS])}{' …' if len(shares) > SHOWN_DEPTHS else ''}"]


def _slots(smashed: list["Smashed"]) -> list[str]:
    """Returns what there is to say of fused slots."""
    slots = sum(s.slots for s in smashed)
    return [f"{sum(s.tokens for s in smashed) / slots:.2f} tokens a slot of the output"] if slots else []
