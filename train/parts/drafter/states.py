"""Whether kept states are those of a target and of packed rows."""

from __future__ import annotations

from pathlib import Path

from train.data.rows import Packed
from train.data.states import read_record
from train.run.frozen import SHOWN
from train.run.start import Stored


def check_states(folder: Path, packed: Packed, base: Stored, length: int) -> None:
    """Checks that a folder's states are those that a target would make, before any device is used.

    Args:
      folder: that `train.states` made.
      packed: what the drafter is trained on.
      base: the target.
      length: tokens that an entry sees at most.

    Raises:
      FileNotFoundError: the folder is not whole.
      ValueError: they are of other rows, of another length or of another target, which the message names.
    """
    record = read_record(folder)
    for name, was, now in (
        ("other data: the rows packed in it", record.packed_sha256, packed.index["sources_sha256"]),
        ("other data: its tokenizer", record.tokenizer_sha256, packed.index["tokenizer_sha256"]),
    ):
        if was != now:
            raise ValueError(f"{folder} was made of {name} have hash {was[:SHOWN]}; {packed.folder} has {now[:SHOWN]}")
    if record.length != length:
        raise ValueError(f"{folder} was made of pieces of {record.length} tokens; the length of a row is {length}")
    if record.config_sha256 not in ("", base.config_sha256):
        raise ValueError(f"{folder} was made by a base of another configuration than that of {base.folder}")
    # Other files may hold the same weights, which only reading them tells.
    if record.base_sha256 != base.sha256 and record.base_fingerprint != (mark := base.fingerprint()):
        raise ValueError(
            f"{folder} was made by another base, whose weights have fingerprint {record.base_fingerprint[:SHOWN]}; "
            f"those of {base.folder} have {mark[:SHOWN]}"
        )
