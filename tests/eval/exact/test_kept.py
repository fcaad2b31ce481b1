import pytest

from eval.exact.kept import no_draft_kept

ROW = {"must": "equal", "tree": "chain-4", "prompts": 3, "tokens": 30, "forwards": 27}


def test_a_forward_a_token_keeps_no_draft():
    assert no_draft_kept(ROW)
    assert not no_draft_kept(ROW | {"forwards": 26})


@pytest.mark.parametrize("change", [{"tree": None}, {"tree": "off"}, {"must": "differ"}])
def test_a_row_without_drafts_or_of_a_fault_is_not_meant(change):
    assert not no_draft_kept(ROW | change)
