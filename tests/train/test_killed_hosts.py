"""Hosts of which one is killed at a chosen moment, and the run that goes on on another number of them.

The hosts are processes of this machine. The ten seeded cases: python -m pytest -m slow -k seeded_kills
"""

import json
import random
import signal
import time
from collections import Counter
from typing import NamedTuple

import pytest

from tests.hosts import Hosts
from tests.killed_host import MOMENTS, Noted, noting
from tests.train.corpus_files import make_tokenizer, write_lines
from tests.train.outputs import losses, newest
from tests.train.run.test_settings import FIELDS, MODEL
from train.data.corpus import Corpus, Source
from train.data.rows import Packed
from train.pack import pack_corpus
from train.run.batches import Share
from train.run.flow import run

STEPS, SAVE_EVERY = 8, 2
DOCUMENTS = 900
"""Of the corpus: more than all steps read, so that none comes again in another epoch."""

LONGEST = 60
"""Seconds until every process of a job has ended of which one was killed."""

SEEDS = range(13, 23)
"""Of ten cases that together have every kind of moment, process and count."""


class Kill(NamedTuple):
    """A case.

    Attributes:
      count: of processes.
      mesh: of their devices.
      victim: the process that is killed.
      moment: of `MOMENTS`.
      step: at which it is.
      count_after: of processes that go on.
      mesh_after: of theirs.
    """

    count: int
    mesh: str
    victim: int
    moment: str
    step: int
    count_after: int
    mesh_after: str


def drawn(seed: int) -> Kill:
    """Returns the case of a seed."""
    rng = random.Random(seed)

    def mesh(count):
        return rng.choice([f"data={count}", f"fsdp={count}", *(["data=2,fsdp=2"] if count == 4 else [])])

    count, after, moment = rng.choice([2, 4]), rng.choice([1, 2, 4]), rng.choice([*MOMENTS])
    victim = rng.choice([0, rng.randrange(1, count)])
    step = rng.randint(2, STEPS) if moment == "asked" else rng.randrange(SAVE_EVERY, STEPS + 1, SAVE_EVERY)
    return Kill(count, mesh(count), victim, moment, step, after, mesh(after))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards of documents that all differ and fit a row, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("killed")
    texts = ({"text": f"Once there were {i} foxes." + " They ran away." * (i % 2)} for i in range(DOCUMENTS))
    write_lines(root / "data" / "stories.jsonl", *texts)
    tokenizer = make_tokenizer(root / "tokenizer")
    corpus = Corpus(sources=(Source("stories", paths=("stories.jsonl",)),), held_out=0.02)
    pack_corpus(corpus, root / "data", tokenizer, root / "packed")
    (root / "config.json").write_text(json.dumps(FIELDS | {"model": MODEL | {"num_layers": 1}, "steps": STEPS}))
    return root


@pytest.fixture(scope="module")
def ids(place):
    """The number of each document by its tokens."""
    pieces = Packed(place / "packed", place / "tokenizer").pieces("train", FIELDS["length"])["stories"]
    found = {tuple(pieces[i].tokens.tolist()): i for i in range(len(pieces))}
    assert len(found) == len(pieces) > 0.9 * DOCUMENTS
    return found


@pytest.fixture(scope="module")
def whole(place, ids):
    """The documents that a run reads in each step which nothing disturbs, and its losses."""
    train_here(place, place / "whole", place / "noted")
    read = noted(place / "noted", ids)
    assert [*read] == [*range(1, STEPS + 1)]
    assert max(sum(read.values(), Counter()).values()) == 1
    assert min(sum(read[step].values()) for step in read) > FIELDS["batch_size"]
    return read, losses(place / "whole")


def options(mesh):
    return {"mesh": mesh, "save_every": SAVE_EVERY, "evaluate_every": 1000, "log_every": 1}


def train_here(place, output, notes, *, reader=Noted, mesh="data=1", **given):
    """Makes a run, or what is left of it, in this process."""
    notes.mkdir()
    part = noting(notes, reader=reader).from_files(place / "config.json", place / "packed", place / "tokenizer")
    run(part, output, **options(mesh), **given)


def begin(place, output, notes, count, mesh, *words):
    notes.mkdir()
    program = ["-m", "tests.killed_host", "--notes", notes, "--config", place / "config.json"]
    program += ["--packed", place / "packed", "--tokenizer", place / "tokenizer", "--output", output]
    for name, value in options(mesh).items():
        program += [f"--{name.replace('_', '-')}", value]
    return Hosts(program, count, each=[words] * count)


def noted(folder, ids):
    """Returns how often each document was read in each step, by all processes together."""
    read = {}
    for file in folder.glob("*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            read.setdefault(line["step"], Counter()).update(ids[tuple(tokens)] for tokens in line["read"])
    return dict(sorted(read.items()))


def check_read(whole, before, later, saved):
    """Checks that the steps that count read what those of an undisturbed run did, so each document once."""
    assert [*later] == [*range(saved + 1, STEPS + 1)]
    read = {step: found for step, found in before.items() if step <= saved} | later
    assert max(sum(read.values(), Counter()).values()) == 1, "a document was read twice"
    assert read == whole, "other documents were read"


def killed(place, output, notes, kill):
    """Begins a run of which a process kills itself; returns what became of all, and the newest step that was saved."""
    words = ("--victim", kill.victim, "--moment", kill.moment, "--step", kill.step)
    hosts = begin(place, output, notes, kill.count, kill.mesh, *words)
    hosts.processes[kill.victim].wait(timeout=240)
    began = time.monotonic()
    ended = hosts.ended(timeout=2 * LONGEST)
    took, saved = time.monotonic() - began, newest(output)
    print(f"{kill}: all ended {took:.1f} s later; goes on from step {saved}")
    for number, process in enumerate(ended):
        assert process.status == -9 if number == kill.victim else process.status not in (0, -9), process.errors
    assert took < LONGEST
    return ended, saved


def go_on(place, output, notes, count, mesh):
    """Makes what is left of a run, on so many processes."""
    if count == 1:
        train_here(place, output, notes, mesh=mesh, resume=True)
        return
    for process in begin(place, output, notes, count, mesh, "--resume").ended():
        assert process.status == 0, process.errors


def check_survived(place, whole, ids, tmp_path, kill):
    """Kills a process, goes on, and checks that all else was as in an undisturbed run; returns what became of all."""
    (read, measured), run_ = whole, tmp_path / "run"
    ended, saved = killed(place, run_, tmp_path / "before", kill)
    if kill.moment == "asked":  # What was saved last may not have been whole yet.
        assert saved % SAVE_EVERY == 0
        assert kill.step - 1 - 2 * SAVE_EVERY < saved < kill.step
    else:
        assert saved == kill.step - SAVE_EVERY
    go_on(place, run_, tmp_path / "later", kill.count_after, kill.mesh_after)
    check_read(read, noted(tmp_path / "before", ids), noted(tmp_path / "later", ids), saved)
    assert losses(run_) == pytest.approx(measured, abs=1e-5)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_kills_lose_the_steps_since_the_last_save_and_no_document(place, whole, ids, tmp_path, seed):
    kill = drawn(seed)
    ended = check_survived(place, whole, ids, tmp_path, kill)
    assert [process.status == -signal.SIGKILL for process in ended] == [i == kill.victim for i in range(kill.count)]


def test_seeds_reach_every_count_moment_and_kind_of_process():
    kills = [drawn(seed) for seed in SEEDS]
    assert {(kill.count, kill.victim == 0) for kill in kills} == {(2, True), (2, False), (4, True), (4, False)}
    assert {(kill.moment, kill.victim == 0) for kill in kills} == {
        (m, first) for m in MOMENTS for first in (True, False)
    }
    assert {kill.count_after for kill in kills} == {1, 2, 4}
    assert any(kill.count == kill.count_after for kill in kills)


@pytest.mark.slow
def test_process_0_is_killed_while_it_saves_and_one_process_goes_on(place, whole, ids, tmp_path):
    kill = Kill(2, "data=2", 0, "written", 4, count_after=1, mesh_after="data=1")
    _, other = check_survived(place, whole, ids, tmp_path, kill)
    # Process 0 holds the service that joins them, and JAX ends the others in this way.
    assert other.status == -signal.SIGABRT
    assert "Terminating process because the JAX distributed service detected fatal errors" in other.errors
    assert other.seconds < 10


class Beginning(Noted):
    """Batches that begin again where a run goes on."""

    def set_state(self, state):
        self.step = state["step"]


class Skipping(Noted):
    """Batches of which one is left out where a run goes on."""

    def set_state(self, state):
        super().set_state(state)
        next(self.batches)


@pytest.mark.parametrize(("reader", "said"), [(Beginning, "was read twice"), (Skipping, "other documents were read")])
def test_a_reader_that_begins_again_or_leaves_out_a_batch_is_caught(place, whole, ids, tmp_path, reader, said):
    """The control of `check_read`, without training."""
    saved, state, read = STEPS // 2, None, {}
    for name, kind, steps in (
        ("before", Noted, saved),
        ("right", Noted, STEPS - saved),
        ("wrong", reader, STEPS - saved),
    ):
        (tmp_path / name).mkdir()
        part = noting(tmp_path / name, reader=kind)
        batches = part.from_files(place / "config.json", place / "packed", place / "tokenizer").rows(1, Share()).batches
        if state is not None:
            batches.set_state(state)
        for _ in range(steps):
            next(batches)
        state, read[name] = state or batches.get_state(), noted(tmp_path / name, ids)
    check_read(whole[0], read["before"], read["right"], saved)
    with pytest.raises(AssertionError, match=said):
        check_read(whole[0], read["before"], read["wrong"], saved)
