"""Decoding on two hosts, which are two processes of this machine."""

import json

import pytest

from tests.decoding_host import decoded
from tests.hosts import Hosts

CASES = [
    {
        "method": "recycling",
        "draft": {"tree": "chain-3"},
        "num_samples": 2,
        "sampling": {"temperature": 0.7},
        "log_probs": 1,
    },
]
MORE = [
    {},
    {"method": "recycling", "draft": {"tree": "auto"}},
    {"method": "lookup", "draft": {"tree": "chain-3"}, "batch_size": 2},
    {"prompt_log_probs": 2, "log_probs": 2},
]


def two_hosts(cases, mesh, folder, count=2):
    """Returns what two processes decode together."""
    (folder / "cases.json").write_text(json.dumps(cases))
    program = ["-m", "tests.decoding_host", folder / "cases.json", folder / "tokens.json", mesh]
    for process in Hosts(program, count).ended(timeout=900):
        assert process.status == 0, process.errors
    return json.loads((folder / "tokens.json").read_text())


def one_host(cases):
    return json.loads(json.dumps(decoded(cases)))


def test_two_hosts_decode_the_tokens_of_one(tmp_path):
    found = two_hosts(CASES, "data=2", tmp_path)
    assert found == one_host(CASES)
    assert len({str(tokens) for tokens, _ in found[0]}) > 4  # Samples vary, so equality says something.


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "count"), [("tp=2", 2), ("data=2,tp=2", 4), ("fsdp=4", 2)])
def test_other_meshes_and_methods_decode_the_tokens_of_one(mesh, count, tmp_path):
    found, expected = two_hosts(CASES + MORE, mesh, tmp_path, count), one_host(CASES + MORE)
    assert [[tokens for tokens, _ in case] for case in found] == [[tokens for tokens, _ in case] for case in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for (_, one), (_, other) in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=2e-3)
