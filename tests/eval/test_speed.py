import dataclasses
import json

import pytest

from eval import speed
from eval.reports.report import run_program
from eval.speed import PROMPTS, Settings, main, measure
from eval.timing.measure import Ours
from jax_smash.serve.prompts import read_prompts
from jax_smash.sparse import Oracle, paying
from tests.checkpoints import LLAMA
from tests.model_directory import write_model
from tests.tiny import tiny_model

FAST = {"repeats": 1, "settle_seconds": 0.0, "bandwidth_mebibytes": 2}
# A capacity that no other test has: programs are kept, and one of the tests is of a program that is not there yet.
SIZES = {"slots": 52, "max_new_tokens": 12, "batch_size": 2}
TOKENS = [[10, 20, 30], [40, 50]]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shape")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 1}))
    return str(folder)


@pytest.fixture(scope="module")
def report(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "speed.json"
    settings = Settings(random_init=config, prompt_tokens=5, num_prompts=3, batch_size=2, max_new_tokens=9, json=path)
    main(dataclasses.replace(settings, **FAST))
    return json.loads(path.read_text())


def test_the_report_says_how_it_was_made(report):
    assert report["device"]["platform"] == "cpu"
    assert report["versions"]["jax"]
    assert report["settings"]["batch_size"] == 2
    assert report["read_bandwidth_bytes_per_second"] == max(report["read_bandwidth"]["readers"].values())


def test_a_row_has_every_figure(report):
    (row,) = report["rows"]
    names = """method batch_size tokens_per_second ms_per_step mean_accepted_tokens speedup time_to_first_token_ms
        compile_s peak_memory_mb bytes_per_step roofline_fraction"""
    assert row.keys() >= set(names.split())
    assert all(row[name] is not None for name in names.split())


def test_the_figures_of_a_row_agree(report):
    (row,) = report["rows"]
    assert (row["method"], row["speedup"], row["mean_accepted_tokens"]) == ("ar", 1, 1)
    assert row["tokens_per_second"] * row["ms_per_step"] / 1e3 == pytest.approx(row["batch_size"])
    read = row["bytes_per_step"] / (row["ms_per_step"] / 1e3)
    assert row["roofline_fraction"] == pytest.approx(read / report["read_bandwidth_bytes_per_second"])
    assert row["compile_s"] > 0
    assert row["peak_memory_mb"] > row["program_memory_mb"] > report["model"]["weight_bytes"] / 1e6


def test_three_prompts_in_batches_of_two_fill_the_last_batch_up(report):
    assert report["prompt_tokens"] == [5] * 4


def test_weights_that_fit_the_cache_are_noted(report):
    if report["device"]["host_last_level_cache_bytes"] is None:
        pytest.skip("the system does not tell its caches")
    assert any("last-level cache" in note for note in report["notes"])


@pytest.fixture(scope="module")
def model():
    return tiny_model(num_layers=1, layer_kinds=("full",), window=0)


@pytest.fixture(scope="module")
def ours(model):
    contender = Ours("ar", model, **SIZES)
    contender.warm_up([TOKENS])
    return contender


@pytest.fixture(scope="module")
def sample(ours):
    return ours.run(TOKENS)


@pytest.fixture(scope="module")
def stopping(model, sample):
    """The same model with a stop token that it is known to say."""
    return dataclasses.replace(model, stop_tokens=(sample.tokens[0][4],))


def test_without_stop_tokens_every_row_does_the_same_work(sample):
    assert [len(row) for row in sample.tokens] == [12, 12]
    assert (sample.steps, sample.forwards, sample.decoded) == (11, 22, 22)


def test_a_stop_token_ends_a_row_and_its_work(stopping, sample):
    contender = Ours("ar", stopping, **SIZES)
    contender.warm_up([TOKENS])
    found = contender.run(TOKENS)
    length = sample.tokens[0].index(stopping.stop_tokens[0]) + 1
    assert found.tokens[0] == sample.tokens[0][:length]
    assert found.forwards == sum(map(len, found.tokens)) - 2


def test_a_shape_that_was_not_warmed_up_is_not_reported(ours):
    with pytest.raises(RuntimeError, match="warm-up missed a shape"):
        ours.run([[1] * 20, [2]])


def test_the_shipped_prompts_can_be_read():
    prompts = read_prompts(PROMPTS)
    assert len(prompts) == 24
    assert len(set(prompts)) == 24


def test_transformers_says_the_same_on_the_same_weights(tmp_path):
    pytest.importorskip("torch", reason="the peer runs on torch")
    write_model(tmp_path, num_hidden_layers=1)
    settings = Settings(
        model=str(tmp_path), num_prompts=2, batch_size=2, max_new_tokens=8, peers=("transformers",), **FAST
    )
    ours, peer = measure(settings)["rows"]
    assert (peer["method"], peer["prompts_compared"], peer["prompts_differing"]) == ("transformers", 2, 0)
    assert peer["ours_over_peer"] == ours["ours_over_peer"] == pytest.approx(1 / peer["speedup"])
    assert {t["implementation"] for t in peer["tried"]} == {"generate", "generate, static cache", "loop by hand"}
    assert peer["implementation"] in {t["implementation"] for t in peer["tried"]}


def test_the_peer_ends_where_we_end(stopping):
    pytest.importorskip("torch", reason="the peer runs on torch")
    from eval.timing.peers import Transformers

    ours, peer = Ours("ar", stopping, **SIZES), Transformers(stopping, dtype="float32", max_new_tokens=12)
    ours.warm_up([TOKENS])
    mine, theirs = ours.run(TOKENS), peer.run(TOKENS)
    assert theirs.tokens == mine.tokens
    assert (theirs.steps, theirs.forwards) == (mine.steps, mine.forwards)


def test_prompt_lookup_of_the_peer_says_the_same_in_fewer_forwards(model):
    pytest.importorskip("torch", reason="the peer runs on torch")
    from eval.timing.peers import PromptLookup, Transformers

    prompt = [10, 20, 30, 40] * 5
    plain = Transformers(model, dtype="float32", max_new_tokens=24)
    lookup = PromptLookup(model, dtype="float32", max_new_tokens=24, loaded=plain.model)
    theirs, found = plain.run([prompt]), lookup.run([prompt])
    assert found.tokens == theirs.tokens
    assert found.forwards == found.steps < theirs.forwards == 23
    assert found.decoded <= 23


@pytest.mark.slow
def test_groups_of_one_length_are_measured_beside_their_cap(config):
    settings = Settings(
        random_init=config,
        prompt_tokens=5,
        batch_size=2,
        max_new_tokens=14,
        group_lengths=(1, 3),
        micro_layers=1,
        **FAST,
    )
    report = measure(settings)
    plain, ones, threes = report["rows"]
    assert [row["method"] for row in (plain, ones, threes)] == [
        "ar",
        "hamburger, groups of 1",
        "hamburger, groups of 3",
    ]
    assert "cap" not in plain
    # The first group of 3 comes with the prompt and was not decoded; of 11 tokens the last 2 are a group.
    assert (ones["mean_accepted_tokens"], threes["mean_accepted_tokens"]) == (1, 11 / 4)
    assert (ones["output_compression"], threes["output_compression"]) == (1, 14 / 5)
    # On a busy machine steps of one token may seem faster than plain ones; no speed lies above its cap.
    assert ones["cap"] == max(1, ones["speedup"])
    assert threes["share_of_cap"] == pytest.approx(threes["speedup"] / threes["cap"])
    told = {row["method"] for row in (ones, threes) if any(row["method"] in note for note in report["notes"])}
    assert told == {row["method"] for row in (ones, threes) if row["speedup"] < 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("magic",)}, "method must be one of ar.*; got 'magic'"),
        ({"model": "tiny"}, "either --model or --random-init"),
        ({"prompts": PROMPTS}, "--prompts and --prompt-tokens exclude each other"),
        ({"max_new_tokens": 1}, "max_new_tokens must be at least 2; got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"max_new_tokens": 1000}, "1005 are more than the model's context of 256"),
        ({"random_init": "no-such-shape"}, "no-such-shape"),
        ({"methods": ("hamburger",)}, "random_init has no trained modules for hamburger: give group_lengths"),
        ({"confidence": 0.5}, "options of hamburger go with none of the methods ar"),
        ({"group_lengths": (0, 2)}, "group_lengths and micro_layers must be at least 1; got 0"),
        ({"group_lengths": (2,), "weights": "int8"}, "group_lengths goes with plain weights; got int8"),
        ({"group_lengths": (2,), "sparse": "quest"}, "group_lengths goes with the whole cache; got sparse quest"),
        ({"kv_budget": "64"}, "kv_budget, page_size and sparse_from go with sparse"),
        ({"sparse": "streaming", "sparse_from": 64}, "sparse_from goes with a policy that chooses slots"),
        ({"sparse": "h2o", "sparse_from": 64}, "pays_from must be 0 for H2O"),
        ({"sparse": "best"}, "a policy must be one of butler, dense"),
        ({"group_lengths": (2,), "smash_mode": "checked"}, "group_lengths goes with smash_mode blind; got checked"),
        ({"group_lengths": (2,), "confidence": 2.0}, "confidence must be over 0 and at most 1; got 2.0"),
        ({"group_lengths": (1, 4), "micro_steps": 2}, "group_length must be at most the micro_steps of 2; got 4"),
        ({"modules": "x"}, "modules goes with hamburger and with trained modules alone"),
        ({"group_lengths": (1, 2), "modules": "x"}, "modules goes with hamburger and with trained modules alone"),
    ],
)
def test_what_cannot_be_measured_is_refused(config, changes, message):
    settings = Settings(random_init=config, prompt_tokens=5, **FAST)
    with pytest.raises((ValueError, OSError), match=message):
        measure(dataclasses.replace(settings, **changes))


def test_a_bad_prompts_file_is_one_line_and_a_status(config, tmp_path, monkeypatch, capsys):
    bad, out = tmp_path / "bad.jsonl", tmp_path / "out.json"
    bad.write_text('{"prompt": [1, 2]}\n{"text": "a"}\n')
    arguments = ["speed", "--random-init", config, "--prompts", str(bad), "--json", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert str(end.value).startswith("error: ")
    assert "line 2" in str(end.value)
    assert "\n" not in str(end.value)
    assert not out.exists()


def test_a_file_that_exists_stays_as_it_is(config, tmp_path):
    out = tmp_path / "out.json"
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="output file exists"):
        main(Settings(random_init=config, json=out))
    assert out.read_text() == "mine"


def test_short_texts_are_read_whole_under_a_policy_unless_sparse_from_says_else():
    model = tiny_model(layer_kinds=("full", "full"))
    settings = Settings(model="tiny", methods=("ar", "self-sparse"), sparse="oracle", kv_budget="16")
    from_where = paying(Oracle(budget=16), model, batch=1)
    assert from_where.pays_from > 0
    for changes, policy in (
        ({}, from_where),
        ({"sparse_from": 0}, Oracle(budget=16)),
        ({"sparse_from": 48}, Oracle(budget=16, pays_from=48)),
    ):
        _, sparse, drafts = speed._ours(dataclasses.replace(settings, **changes), model, 64)
        assert sparse.model.definition.policy == policy
        assert drafts.draft.sparse == policy
        notes = speed._of_policy(dataclasses.replace(settings, **changes), model)
        assert notes == (
            [f"under oracle texts below {policy.pays_from} slots are read whole; see --sparse-from"]
            if policy.pays_from
            else []
        )


def test_what_a_share_of_a_text_is_at_least_stands_among_the_notes():
    settings = Settings(model="tiny", methods=("ar",), sparse="oracle", kv_budget="25%", sparse_from=0)
    (note,) = speed._of_policy(settings, tiny_model(layer_kinds=("full", "full")))
    assert note == "under oracle a budget of 25% of a text is at least 4 slots, which are always read"


@pytest.mark.slow
def test_int8_weights_run_beside_plain_ones(config):
    settings = Settings(random_init=config, prompt_tokens=5, max_new_tokens=9, weights="int8", **FAST)
    plain, small = measure(settings)["rows"]
    assert (plain["method"], small["method"]) == ("ar", "ar int8")
    assert small["bytes_per_step"] < plain["bytes_per_step"] / 2
    assert small["speedup"] > 0


def test_a_mesh_is_measured_without_compiling_while_the_clock_runs(config):
    settings = Settings(random_init=config, prompt_tokens=5, max_new_tokens=5, mesh="fsdp=2,tp=2", **FAST)
    found = measure(settings)
    assert found["rows"][0]["tokens_per_second"] > 0
    assert "the model is divided over several" in found["notes"][0]


def test_a_drafting_method_says_what_it_drafted(config):
    settings = Settings(random_init=config, methods=("recycling",), tree="chain-2", prompt_tokens=5, max_new_tokens=9)
    plain, drafted = measure(dataclasses.replace(settings, **FAST))["rows"]
    assert "tree" not in plain
    assert (drafted["tree"], drafted["nodes"], len(drafted["acceptance_by_depth"])) == ("chain-2", 2, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tree": "chain-2"}, "tree goes with none of the methods ar"),
        ({"methods": ("recycling",), "tree": "oak"}, "tree must be auto"),
        ({"peers": ("transformers-lookup",), "batch_size": 2}, "batch_size must be 1 beside transformers-lookup"),
        (
            {"methods": ("recycling",), "lookup_corpus": "texts"},
            "lookup_corpus goes with none of the methods recycling",
        ),
    ],
)
def test_options_of_drafting_must_fit_a_method(changes, said):
    with pytest.raises(ValueError, match=said):
        Settings(model="tiny", **changes).check()
