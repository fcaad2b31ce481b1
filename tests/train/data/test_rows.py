import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.train.corpus_files import make_packed, make_tokenizer
from train.data.rows import Packed, held_out_batches, training_batches
from train.run.batches import Share

LENGTH = 16
EOS = 1


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return Packed(*make_packed(tmp_path_factory.mktemp("data")))


def batches_of(packed, **options):
    return training_batches(packed, **({"length": LENGTH, "batch_size": 4, "seed": 3} | options))


def take(batches, count):
    return list(itertools.islice(batches, count))


def equal(a, b):
    return all(np.array_equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))


def together(shares):
    """The rows of all hosts as one batch."""
    return [np.concatenate(column) for column in zip(*shares, strict=True)]


def segments_of(batch):
    """Each document part of a batch: its inputs and its targets."""
    for row in range(len(batch.tokens)):
        for number in range(1, batch.segments[row].max() + 1):
            where = batch.segments[row] == number
            yield batch.tokens[row][where], batch.targets[row][where], batch.positions[row][where]


def test_every_segment_is_a_documents_part_shifted_by_a_token(packed):
    sources = packed.pieces("train", 10_000).values()
    texts = [" ".join(map(str, pieces[i].tokens)) for pieces in sources for i in range(len(pieces))]
    for batch in take(batches_of(packed), 5):
        for tokens, targets, positions in segments_of(batch):
            np.testing.assert_array_equal(tokens[1:], targets[:-1])
            np.testing.assert_array_equal(positions, np.arange(len(tokens)))
            whole = " ".join(map(str, [*tokens, targets[-1]]))
            assert any(whole in text for text in texts)


def test_cut_documents_keep_every_target(packed):
    whole, cut = (packed.pieces("train", length) for length in (10_000, LENGTH))
    for name, pieces in cut.items():
        lengths = [len(pieces[i].tokens) for i in range(len(pieces))]
        assert 2 <= min(lengths) <= max(lengths) <= LENGTH + 1
        assert sum(lengths) - len(lengths) == sum(len(whole[name][i].tokens) - 1 for i in range(len(whole[name])))
    assert any(len(cut[name]) > len(whole[name]) for name in cut)


def test_padding_counts_for_nothing_and_is_little(packed):
    batches = take(batches_of(packed), 20)
    for batch in batches:
        assert not batch.weights[batch.segments == 0].any()
        assert (batch.weights[batch.segments > 0] == 1).all()
        assert [array.dtype for array in batch] == [np.int32] * 4 + [np.float32]
        assert {array.shape for array in batch} == {(4, LENGTH)}
    assert np.mean([(batch.segments > 0).mean() for batch in batches]) > 0.9


def test_sources_are_trained_on_in_proportion_to_their_shares(packed):
    counts = {"chats": 0, "stories": 0}
    user = 2
    for batch in take(batches_of(packed, length=64), 60):
        for tokens, _, _ in segments_of(batch):
            counts["chats" if user in tokens[:2] else "stories"] += len(tokens)
    assert 1.7 < counts["stories"] / counts["chats"] < 2.3


@pytest.mark.parametrize("done", [0, 1, 7, 40])
def test_batches_go_on_where_they_stood(packed, done):
    whole = batches_of(packed)
    take(whole, done)
    state = json.loads(json.dumps(whole.get_state()))
    resumed = batches_of(packed)
    resumed.set_state(state)
    assert equal(take(whole, 12), take(resumed, 12))


def test_the_seed_alone_decides_the_order(packed):
    assert equal(take(batches_of(packed), 10), take(batches_of(packed), 10))
    assert not equal(take(batches_of(packed), 10), take(batches_of(packed, seed=4), 10))


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_share_the_rows_that_one_host_would_read(packed, hosts):
    alone = take(batches_of(packed), 12)
    shares = [take(batches_of(packed, share=Share(host, hosts)), 12) for host in range(hosts)]
    assert {batch.tokens.shape for batches in shares for batch in batches} == {(4 // hosts, LENGTH)}
    assert equal(alone, map(together, zip(*shares, strict=True)))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_any_number_of_hosts_goes_on_where_another_stood(packed, before, after):
    alone = take(batches_of(packed), 19)
    hosts = [batches_of(packed, share=Share(host, before)) for host in range(before)]
    assert equal(alone[:7], map(together, zip(*(take(host, 7) for host in hosts), strict=True)))
    states = [json.dumps(host.get_state()) for host in hosts]
    assert len({*states}) == 1
    hosts = [batches_of(packed, share=Share(host, after)) for host in range(after)]
    for host in hosts:
        host.set_state(json.loads(states[-1]))
    assert equal(alone[7:], map(together, zip(*(take(host, 12) for host in hosts), strict=True)))
    assert {host.tokens for host in hosts} == {sum(np.count_nonzero(batch.segments) for batch in alone)}


def test_rows_that_do_not_divide_among_the_hosts_are_refused(packed):
    with pytest.raises(ValueError, match="a batch must divide among 3 hosts; got 4 rows"):
        batches_of(packed, share=Share(0, 3))


def test_an_answers_targets_weigh_what_they_are_told_to(tmp_path):
    from tests.train.corpus_files import write_corpus
    from train.data.corpus import Corpus, Source
    from train.pack import pack_corpus

    write_corpus(tmp_path)
    source = Source("recall", task="key_value", count=30, lengths=(120,), chats=0.5)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    pack_corpus(Corpus(sources=(source,), held_out=0.1), tmp_path, tokenizer, tmp_path / "out")
    packed = Packed(tmp_path / "out", tokenizer)
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(tokenizer).decode
    batch = next(batches_of(packed, length=256, answer_weight=4.0))
    assert set(np.unique(batch.weights)) <= {0, 1, 4}
    pieces = packed.pieces("train", 1000)["recall"]
    for i in range(5):
        answers = pieces[i].marks == 1
        assert 0 < answers.sum() < len(answers)
        assert decode(pieces[i].tokens[answers]).strip() in decode(pieces[i].tokens[: answers.argmax()])
    for row in range(4):
        heavy = batch.weights[row] == 4
        assert 0 < heavy.sum() < 60
        assert EOS not in batch.targets[row][heavy]


def test_what_goes_in_circles_weighs_against_itself_and_is_not_measured(tmp_path):
    from tests.train.corpus_files import write_lines
    from train.data.corpus import Corpus, Source
    from train.pack import pack_corpus

    texts = [" ".join(f"Fox number {i} ran to the den." for i in range(n, n + 20)) for n in range(0, 400, 20)]
    write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    source = Source("loops", paths=("a.jsonl",), circles=True)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    pack_corpus(Corpus((source,), held_out=0.2, passage=10**6), tmp_path, tokenizer, tmp_path / "out")
    packed = Packed(tmp_path / "out", tokenizer)
    batch = next(batches_of(packed, length=256, circle_weight=3.0))
    assert set(np.unique(batch.weights)) == {-3, 0, 1}
    [held_out] = held_out_batches(packed, length=256, batch_size=4, rows=4)["loops"]
    assert set(np.unique(held_out.weights)) == {0, 1}
    assert ((held_out.weights == 0) & (held_out.segments > 0)).any()


def test_held_out_rows_come_once_and_the_last_batch_is_padded(packed):
    sets = held_out_batches(packed, length=LENGTH, batch_size=4)
    pieces = packed.pieces("held_out", LENGTH)
    assert [*sets] == [*pieces]
    for name, batches in sets.items():
        targets = sum(len(pieces[name][i].tokens) - 1 for i in range(len(pieces[name])))
        assert sum(batch.weights.sum() for batch in batches) == targets
        assert {batch.tokens.shape for batch in batches} == {(4, LENGTH)}
    assert all(len(batches) == 1 for batches in held_out_batches(packed, length=8, batch_size=4, rows=3).values())


def test_shards_of_another_tokenizer_are_refused(packed, tmp_path):
    from train.tokenizer import save_tokenizer, train_tokenizer

    save_tokenizer(train_tokenizer(["other words"], 265), tmp_path / "other")
    with pytest.raises(ValueError, match=r"packed with the tokenizer of hash [0-9a-f]{64}; .*other has [0-9a-f]{64}"):
        Packed(packed.folder, tmp_path / "other")


def test_a_shard_that_does_not_fit_the_index_is_named(tmp_path):
    folder, tokenizer = make_packed(tmp_path)
    shard = folder / "train-stories-00000.tokens.npy"
    tokens = np.load(shard)
    np.save(shard, tokens[:-1])
    with pytest.raises(ValueError, match=rf"train-stories-00000 must hold {len(tokens)} tokens; got"):
        Packed(folder, tokenizer).pieces("train", LENGTH)
    np.save(shard, tokens)
    marks = folder / "train-stories-00000.marks.npy"
    np.save(marks, np.load(marks)[:-1])
    with pytest.raises(ValueError, match=rf"train-stories-00000 must hold {len(tokens)} tokens; .* marks"):
        Packed(folder, tokenizer).pieces("train", LENGTH)
    shard.write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match="cannot be read as packed data"):
        Packed(folder, tokenizer).pieces("train", LENGTH)
    shard.unlink()
    with pytest.raises(ValueError, match="cannot be read as packed data"):
        Packed(folder, tokenizer).pieces("train", LENGTH)


def test_a_folder_without_shards_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere cannot be read as packed data"):
        Packed(tmp_path / "nowhere", make_tokenizer(tmp_path / "tokenizer"))


def test_reading_shards_imports_no_tokenizer_library(request):
    check = "import sys, train.data.rows; sys.exit(bool({'transformers', 'tokenizers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], cwd=request.config.rootpath, check=False).returncode == 0
