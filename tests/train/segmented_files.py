"""Segmented folders written by hand, for the tests of what reads them."""

import json

import numpy as np

from train.pack import file_sha256

SPLITS = ("train", "held_out")


def write_segmented(
    folder, tokenizer, documents, *, held_out=None, micro_steps=3, base_sha256="", begins=(), ends=(), **replies
):
    """Writes one source of documents, each a list of groups of tokens; an answer's tokens are negative.

    Args:
      folder: to write.
      tokenizer: folder of the tokenizer.
      documents: to train on.
      held_out: to measure on; None for the same.
      micro_steps: J.
      base_sha256: of the base.
      begins, ends: as in `Replies`.
      replies: other fields of `Replies`; `prompt_share` is 0 without.
    """
    folder.mkdir(parents=True)
    source = {"name": "a", "share": 1}
    for split, found in zip(SPLITS, (documents, documents if held_out is None else held_out), strict=True):
        flat = [token for document in found for group in document for token in group]
        places = [place for document in found for group in document for place in range(len(group))]
        ends_of = np.cumsum([sum(map(len, document)) for document in found], dtype=np.int64)
        np.save(folder / f"{split}-a-00000.tokens.npy", np.abs(flat).astype(np.uint16))
        np.save(folder / f"{split}-a-00000.marks.npy", (np.array(flat) < 0).astype(np.int8))
        np.save(folder / f"{split}-a-00000.places.npy", np.array(places, np.uint8))
        np.save(folder / f"{split}-a-00000.documents.npy", ends_of)
        source[split] = {"documents": len(found), "tokens": len(flat), "shards": [f"{split}-a-00000"]}
    replies = {"begins": list(begins), "ends": list(ends), "prompt_share": 0.0, **replies}
    index = {
        "tokenizer_sha256": file_sha256(tokenizer / "tokenizer.json"),
        "vocab_size": 290,
        "sources": [source],
        "sources_sha256": "a1",
        "segmentation": {
            "rule": "ratio",
            "micro_steps": micro_steps,
            "reading": {"length": 64, "batch_tokens": 64, "replies": replies},
            "base_sha256": base_sha256,
            "statistics": {"train-a": {"group_lengths": [1, 1, 1], "reply_tokens": 6}},
        },
    }
    (folder / "index.json").write_text(json.dumps(index))
    return folder
