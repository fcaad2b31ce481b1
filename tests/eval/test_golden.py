"""Every method decodes its golden tokens, and other tokens are found."""

import dataclasses
import functools
import json

import jax
import pytest

from eval.exact.conditions import Condition
from eval.exact.golden_cases import KEPT, Case, Decoder
from eval.golden import Settings, compare, in_lines, main, read_golden
from jax_smash.decode.programs import PROGRAMS
from tests.interpreter import ROOT
from tests.real_model import needs_smollm2

FOLDER = ROOT / "tests" / "golden"
FILES = ("tiny", "smollm2")
EVERY = Settings().cases()
FEW = dataclasses.replace(Settings(), spread=True).cases()
"""A condition for each method, so that every batch size, choice and set of processors occurs."""

NEED_NO_TRAINING = ("ar", "recycling", "lookup", "suffix", "lookahead", "draft-model", "hybrid")
REAL = dataclasses.replace(Settings(), spread=True, methods=(*NEED_NO_TRAINING, "eagle", "chimera")).cases()
"""Of smollm2, which comes with two trained drafters and has no modules."""

OPTIMISED = ("ar", "recycling")
"""Methods that the usual suite decodes with all optimisations of XLA too."""


@pytest.fixture
def optimised(optimised):
    yield
    PROGRAMS.forget()


@functools.cache
def stored(name):
    return read_golden(FOLDER / f"{name}.json")


@functools.cache
def decoder(name):
    return Decoder(stored(name).model, stored(name).prompts)


def check(case, name="tiny"):
    found = compare(decoder(name), case, stored(name).rows[case])
    assert found["failures"] == []
    # Text does not depend on drafts. A drafter that finds less is noticed here; rounding may change a few drafts.
    assert found["forwards"] <= 1.1 * found["stored_forwards"]


def test_the_file_of_tiny_has_every_method_under_every_condition():
    assert set(stored("tiny").rows) == set(EVERY)


def test_the_texts_of_tiny_end_in_every_way():
    texts = [text for row in stored("tiny").rows.values() for text in row["texts"]]
    assert {text.finish for text in texts} == {"length", "stop_token", "stop_string"}


def test_stored_drafted_text_is_stored_plain_text():
    for name in FILES:
        texts = {}
        for case, row in stored(name).rows.items():
            # Modules come with a base of their own.
            key = (case.method == "hamburger", case.condition.processors, case.condition.choice)
            assert texts.setdefault(key, row["texts"]) == row["texts"], (name, str(case))


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.method)
def test_a_method_decodes_its_golden_tokens(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in EVERY if case not in FEW], ids=str)
def test_a_method_decodes_its_golden_tokens_under_every_condition(case):
    check(case)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.method, marks=() if c.method in OPTIMISED else pytest.mark.slow) for c in FEW],
)
def test_optimised_programs_decode_the_golden_tokens(case):
    assert not jax.config.values["jax_disable_most_optimizations"]
    check(case)


@pytest.mark.slow
@needs_smollm2
@pytest.mark.parametrize("case", [pytest.param(c, id=c.method) for c in REAL])
def test_the_real_model_decodes_its_golden_tokens(case):
    check(case, "smollm2")


def test_the_file_of_the_real_model_has_every_method():
    assert set(stored("smollm2").rows) == set(REAL)


GREEDY = Case("ar", Condition(batch_size=2, processors="none", choice="greedy"))
DRAWN = dataclasses.replace(GREEDY, condition=dataclasses.replace(GREEDY.condition, choice="sampled"))
PLAIN = ("--methods", "ar")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A golden file of two prompts in plain decoding, greedy and sampled."""
    path = tmp_path_factory.mktemp("golden") / "small.json"
    settings = Settings(
        methods=("ar",), batch_sizes=(2,), processors=("none",), num_prompts=2, prompt_tokens=12, max_new_tokens=8
    )
    assert main(dataclasses.replace(settings, json=path), [*PLAIN, "--json", str(path)]) == 0
    return path


@pytest.fixture(scope="module", params=[GREEDY, DRAWN], ids=["greedy", "sampled"])
def texts(request, small):
    """A case of it, who decodes it, and its texts."""
    golden = read_golden(small)
    return Decoder(golden.model, golden.prompts), request.param, golden.rows[request.param]["texts"]


def changed(decoded, row=1, position=3, by=1):
    """Returns texts with another token in one place."""
    tokens = list(decoded[row].tokens)
    tokens[position] += by
    return [dataclasses.replace(d, tokens=tokens) if i == row else d for i, d in enumerate(decoded)]


def test_equal_texts_have_no_differences(texts):
    decoder, case, decoded = texts
    assert decoder.differences(case, decoded, decoded) == []


@pytest.mark.slow
@pytest.mark.parametrize("stored_is_wrong", [True, False])
def test_a_changed_token_is_found_on_either_side(texts, stored_is_wrong):
    decoder, case, decoded = texts
    ours, theirs = (decoded, changed(decoded)) if stored_is_wrong else (changed(decoded), decoded)
    (found,) = decoder.differences(case, ours, theirs)
    assert (found.row, found.position, found.near_tie) == (1, 3, False)
    assert (found.found, found.stored) == (ours[1].tokens[3], theirs[1].tokens[3])
    assert (found.gap > 0) is stored_is_wrong


@pytest.mark.parametrize(("share", "near_tie"), [(1.01, True), (0.99, False)])
def test_a_near_tie_is_one_where_the_gap_is_within_rounding(texts, monkeypatch, share, near_tie):
    decoder, case, decoded = texts
    (found,) = decoder.differences(case, decoded, changed(decoded))
    monkeypatch.setattr("eval.exact.divergence.ROUNDING", {"float32": share * found.gap})
    for ours, theirs in ((decoded, changed(decoded)), (changed(decoded), decoded)):
        (again,) = decoder.differences(case, ours, theirs)
        assert again.near_tie is near_tie


def test_what_follows_a_difference_is_not_compared(texts):
    decoder, case, decoded = texts
    twice = changed(changed(decoded), position=6)
    (found,) = decoder.differences(case, decoded, twice)
    assert found.position == 3


def test_a_text_that_ends_otherwise_is_found(texts):
    decoder, case, decoded = texts
    first, second = decoded
    short = [dataclasses.replace(first, tokens=first.tokens[:-1]), dataclasses.replace(second, finish="stop_string")]
    cut, other = decoder.differences(case, decoded, short)
    assert (cut.row, cut.position, cut.stored, cut.near_tie) == (0, 7, None, False)
    assert (other.row, other.found, other.stored, other.near_tie) == (1, "length", "stop_string", False)


def test_another_number_of_programs_is_found(texts):
    decoder, case, decoded = texts
    row = {"texts": decoded, "programs": 2, "forwards": 14}
    assert compare(decoder, case, row)["failures"] == [f"{case}: 3 programs were compiled, stored 2"]


def test_the_check_passes_and_names_a_changed_token(small, tmp_path, capsys):
    assert main(Settings(golden=small, choices=("greedy",)), []) == 0
    assert capsys.readouterr().out.startswith("1 cases: 0 differences, 0 near-ties; 14 forwards, stored 14")
    report = json.loads(small.read_text())
    ours = report["texts"][1]["tokens"][3]
    report["texts"][1]["tokens"][3] += 1
    tampered, out = tmp_path / "tampered.json", tmp_path / "out.json"
    tampered.write_bytes(in_lines(report))
    assert main(Settings(golden=tampered, choices=("greedy",), json=out), []) == 1
    line = f"ar, batch 2, greedy, processors none, row 1, position 3: {ours}, stored {ours + 1}"
    assert capsys.readouterr().out.startswith(f"DIFFERS: {line} (gap ")
    (row,) = json.loads(out.read_text())["rows"]
    assert row["failures"][0].startswith(line)


def test_the_command_stands_in_the_file_and_its_code_does_not(small):
    held = json.loads(small.read_text())
    assert held["command"] == f"python -m eval.golden --methods ar --json {small.name}"
    assert "code" not in held
    assert {"versions", "commit", "settings", "device"} < set(held)


def test_committed_files_name_their_commands():
    for name in FILES:
        held = json.loads((FOLDER / f"{name}.json").read_text())
        assert held["command"].startswith(f"python -m eval.golden --model {name} "), name
        assert held["command"].endswith(f"--json tests/golden/{name}.json"), name
        assert not held["commit"]["dirty"], name


def test_a_spread_has_a_case_for_each_method_and_every_value():
    assert [case.method for case in FEW] == list(KEPT)
    conditions = [case.condition for case in FEW]
    assert {c.batch_size for c in conditions} == {1, 3, 8}
    assert {(c.processors, c.choice) for c in conditions} == {
        (p, c) for p in ("none", "all") for c in ("greedy", "sampled")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.pop("texts"), "is no golden file: KeyError"),
        (lambda held: held["cases"][0]["texts"].append(0), "too few texts, or too long ones"),
        (lambda held: held["cases"][0]["texts"].__setitem__(0, 99), "is no golden file: IndexError"),
        (lambda held: held["texts"][0]["tokens"].append(1), "too few texts, or too long ones"),
    ],
    ids=["no texts", "too many", "unknown text", "too long"],
)
def test_a_damaged_file_is_refused(small, tmp_path, change, message):
    held = json.loads(small.read_text())
    change(held)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(held))
    with pytest.raises(ValueError, match=message):
        read_golden(damaged)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("magic",)}, "method must be one of .*; got 'magic'"),
        ({"methods": ()}, "methods must be of ar, .*; got none"),
        ({"processors": ("some",)}, "processors must be of none, all; got some"),
        ({"choices": ()}, "choices must be of greedy, sampled; got none"),
        ({"batch_sizes": (0,)}, "batch_sizes must be at least 1; got 0"),
        ({"max_new_tokens": 1}, "max_new_tokens must be at least 2; got 1"),
        ({}, "give --json or --check"),
        ({"golden": FOLDER / "tiny.json", "seed": 3}, "with --check, seed is the golden file's; got 3"),
        ({"golden": FOLDER / "tiny.json", "batch_sizes": (2,)}, "has no case of these methods and conditions"),
    ],
)
def test_what_cannot_be_decoded_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        main(Settings(**changes))
