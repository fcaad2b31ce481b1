"""Decoding on two hosts, which are two processes of this machine."""

import json

import pytest

import jax_smash
from tests.decoding_host import decoded
from tests.hosts import Hosts

PROMPT = "Once upon a time"
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


def test_the_command_generate_writes_on_two_hosts_what_one_decodes(tmp_path):
    """One prompt, which two devices do not share out, and a tree, whose arrays JAX makes."""
    program = ["-m", "jax_smash", "generate", "--prompt", PROMPT, "--max-new-tokens", 6, "--temperature", 0.7]
    program += [
        "--method",
        "recycling",
        "--tree",
        "chain-3",
        "--no-compilation-cache",
        "--json",
        tmp_path / "out.jsonl",
    ]
    first, other = Hosts(program).ended(timeout=900)
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    written = json.loads((tmp_path / "out.jsonl").read_text())
    (alone,) = jax_smash.generate(
        jax_smash.load("tiny"),
        [PROMPT],
        max_new_tokens=6,
        sampling=jax_smash.SamplingOptions(temperature=0.7),
        method="recycling",
        draft=jax_smash.DraftOptions(tree="chain-3"),
    )
    assert written["token_ids"] == alone.token_ids
    assert written["text"] in first.output
    assert written["text"] not in other.output
    assert not other.errors


@pytest.mark.slow
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
