"""Whether a row of an exactness report proves anything: without a kept draft, its text is plain decoding's anyway."""

from collections.abc import Mapping
from typing import Any

NO_DRAFT_KEPT = "no draft was kept"


def no_draft_kept(row: Mapping[str, Any]) -> bool:
    """Returns whether drafts were made and none stands in a text that must equal plain decoding's.

    A prompt gives the first token of each text and a forward one more, so that all beyond are drafts.
    """
    if row["must"] != "equal" or row["tree"] in (None, "off"):
        return False
    return row["tokens"] - row["prompts"] <= row["forwards"]
