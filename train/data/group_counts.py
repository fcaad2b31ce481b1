"""How tokens were grouped: counts that add up over chunks of documents, and a picture of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

EDGES = np.concatenate([[0], np.geomspace(1e-4, 16, 53)])
"""Borders of the histograms of entropies, in nats."""


class GroupCounts:
    """Counts of one source and split; prompts and replies apart.

    Args:
      micro_steps: J.
      fields: counts to go on from, as `fields` gives them.
    """

    def __init__(self, micro_steps: int, fields: Mapping[str, Any] | None = None):
        given = fields or {}
        self.tokens = int(given.get("tokens", 0))
        self.slots = int(given.get("slots", 0))
        self.reply_tokens = int(given.get("reply_tokens", 0))
        self.reply_nats = float(given.get("reply_nats", 0))
        self.group_lengths = np.array(given.get("group_lengths", [0] * micro_steps), np.int64)
        self.first_entropy = np.array(given.get("first_entropy", [0] * (len(EDGES) - 1)), np.int64)
        self.joined_entropy = np.array(given.get("joined_entropy", [0] * (len(EDGES) - 1)), np.int64)

    def add(
        self, place: UInt8[np.ndarray, "n"], entropy: Float[np.ndarray, "n"], replies: Bool[np.ndarray, "n"]
    ) -> None:
        """Counts the tokens of whole documents.

        Args:
          place: of each token in its group; 0 at the first token of each document.
          entropy: of each token, in nats.
          replies: marks the tokens that belong to a reply.
        """
        last = np.append(place[1:] == 0, True)
        self.tokens += len(place)
        self.slots += int(np.count_nonzero(place == 0))
        self.reply_tokens += int(np.count_nonzero(replies))
        self.reply_nats += float(entropy[replies].sum(dtype=np.float64))
        self.group_lengths += np.bincount(place[last & replies], minlength=len(self.group_lengths))
        inside = np.clip(entropy, EDGES[0], EDGES[-1])
        self.first_entropy += np.histogram(inside[replies & (place == 0)], EDGES)[0]
        self.joined_entropy += np.histogram(inside[replies & (place > 0)], EDGES)[0]

    @property
    def fields(self) -> dict[str, Any]:
        """What was counted, as JSON holds it."""
        return {
            "tokens": self.tokens,
            "slots": self.slots,
            "reply_tokens": self.reply_tokens,
            "reply_nats": self.reply_nats,
            "group_lengths": self.group_lengths.tolist(),
            "first_entropy": self.first_entropy.tolist(),
            "joined_entropy": self.joined_entropy.tolist(),
        }

    @property
    def tokens_a_group(self) -> float:
        """Of replies, on average."""
        return self.reply_tokens / max(int(self.group_lengths.sum()), 1)

    @property
    def tokens_a_slot(self) -> float:
        """Of whole documents, prompts included, on average."""
        return self.tokens / max(self.slots, 1)


def plot_groups(counts: Mapping[str, GroupCounts], output: Path, *, title: str) -> None:
    """Draws how long groups are, by source, and how uncertain their tokens were, into a PNG."""
    from matplotlib.figure import Figure  # Slow to import, and of use only where there is something to draw.

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    lengths, entropies = figure.subplots(1, 2)
    for i, (name, count) in enumerate(counts.items()):
        share = count.group_lengths / max(int(count.group_lengths.sum()), 1)
        places = np.arange(1, len(share) + 1) + (i - (len(counts) - 1) / 2) * 0.8 / len(counts)
        lengths.bar(places, share, width=0.8 / len(counts), label=f"{name} ({count.tokens_a_group:.2f} tokens)")
    lengths.set(xlabel="tokens of a group", ylabel="share of groups", xticks=range(1, len(share) + 1))
    lengths.legend(fontsize="x-small")
    shown = np.maximum(EDGES, EDGES[1] / 2)  # A logarithmic axis has no 0.
    for label, field in (("first of a group", "first_entropy"), ("joined", "joined_entropy")):
        total = np.sum([getattr(count, field) for count in counts.values()], axis=0)
        entropies.stairs(total / max(int(total.sum()), 1), shown, label=label, fill=True, alpha=0.5)
    entropies.set(xlabel="entropy of a token, nats", ylabel="share of tokens", xscale="log")
    entropies.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    temporary = output.with_suffix(".part.png")
    figure.savefig(temporary, dpi=120)
    os.replace(temporary, output)
