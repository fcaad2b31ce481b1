import itertools
import json

import numpy as np
import pytest

from tests.train.corpus_files import make_tokenizer
from tests.train.segmented_files import write_segmented
from train.data.slot_pieces import Room, Segmented
from train.data.slot_rows import held_out_slot_batches, slot_batches, tokens_of
from train.run.batches import Share

FIRST = [[10], [11, 12], [-13, -14, -15], [16]]
SECOND = [[20], [21], [22, 23]]
ROOM = Room(slots=8, further=4, tokens=100)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "it")


@pytest.fixture(scope="module")
def many(tmp_path_factory, tokenizer):
    """Thirty documents of six to twelve groups of one to three tokens."""
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(1, 200, size=rng.integers(1, 4)).tolist() for _ in range(rng.integers(6, 13))] for _ in range(30)
    ]
    documents = [[document[0][:1], *document[1:]] for document in documents]
    folder = tmp_path_factory.mktemp("many") / "it"
    return documents, Segmented(write_segmented(folder, tokenizer, documents), tokenizer)


def rows_of(segmented, **options):
    return slot_batches(segmented, **({"room": ROOM, "micro_steps": 3, "batch_size": 2, "seed": 1} | options))


def take(batches, count):
    return list(itertools.islice(iter(lambda: next(batches), None), count))


def equal(a, b):
    return all(np.array_equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))


def test_a_row_of_two_documents_matches_the_example_worked_by_hand(tmp_path, tokenizer):
    data = Segmented(write_segmented(tmp_path / "it", tokenizer, [FIRST, SECOND]), tokenizer)
    [batch] = held_out_slot_batches(data, room=ROOM, micro_steps=4, batch_size=1)["a"]
    assert batch.count[0].tolist() == [1, 2, 3, 1, 1, 1, 2, 0]
    # Of the group's last token: two, three and two tokens in one slot.
    assert batch.position[0].tolist() == [0, 2, 5, 6, 0, 1, 3, 0]
    assert batch.segments[0].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    assert batch.tokens[0, [1, 2, 6, 7]].tolist() == [[11, 12, 0, 0], [13, 14, 15, 0], [22, 23, 0, 0], [0, 0, 0, 0]]
    assert batch.weights[0, 2].tolist() == [1, 1, 1, 0]
    # [11, 12] follows slot 0, [13, 14, 15] slot 1, [22, 23] slot 5.
    assert batch.further[0].tolist() == [0, 1, 5, -1]
    # The first document's prompt ends where its answer begins; the second has none but its first token.
    assert batch.spoken[0].tolist() == [False, False, True, True, False, True, True, False]
    assert tokens_of(batch) == 11


def test_answers_weigh_what_they_are_told_to_and_circles_nothing(tmp_path, tokenizer):
    folder = write_segmented(tmp_path / "it", tokenizer, [FIRST] * 9)
    marks = np.load(folder / "train-a-00000.marks.npy")
    marks[6::7] = -1  # Each document's last token says something again.
    np.save(folder / "train-a-00000.marks.npy", marks)
    batch = next(rows_of(Segmented(folder, tokenizer), answer_weight=4.0))
    assert batch.weights[0, :4].tolist() == [[1, 0, 0], [1, 1, 0], [4, 4, 4], [0, 0, 0]]


def test_rows_hold_documents_parts_whole_and_in_order(many):
    documents, data = many
    texts = [json.dumps(document)[1:-1] for document in documents]
    for batch in take(rows_of(data), 12):
        for row in range(2):
            for number in range(1, batch.segments[row].max() + 1):
                where = batch.segments[row] == number
                count, tokens = batch.count[row][where], batch.tokens[row][where]
                groups = [tokens[i, :n].tolist() for i, n in enumerate(count)]
                assert any(json.dumps(groups)[1:-1] in text for text in texts)
                np.testing.assert_array_equal(batch.position[row][where], np.cumsum(count) - 1)
            several = np.flatnonzero((batch.count[row][1:] > 1) & (np.diff(batch.segments[row]) == 0))
            further = batch.further[row]
            assert further[further >= 0].tolist() == several.tolist()


@pytest.mark.parametrize("room", [ROOM, Room(slots=40, further=3, tokens=100), Room(slots=40, further=40, tokens=100)])
def test_groups_are_cut_by_chance_where_a_row_has_room(many, room):
    documents, data = many
    flat = [json.dumps([token for group in document for token in group])[1:-1] for document in documents]
    # What a token begins in its document, by the token; tokens are drawn, so a few stand in several documents.
    whole = {json.dumps(group) for document in documents for group in document}
    batches = take(rows_of(data, room=room, cut_share=0.5), 20)
    joins = cuts = 0
    for batch in batches:
        for row in range(2):
            for number in range(1, batch.segments[row].max() + 1):
                where = batch.segments[row] == number
                count, tokens, cut = batch.count[row][where], batch.tokens[row][where], batch.cut[row][where]
                groups = [tokens[i, :n].tolist() for i, n in enumerate(count)]
                assert any(json.dumps(list(itertools.chain(*groups)))[1:-1] in text for text in flat)
                np.testing.assert_array_equal(batch.position[row][where], np.cumsum(count) - 1)
                assert not cut[0]
                assert not cut[-1]
                for i, end in enumerate(cut):
                    if not end and (i == 0 or not cut[i - 1]):
                        assert json.dumps(groups[i]) in whole
                joins, cuts = joins + (count - 1).sum(), cuts + cut.sum()
            several = np.flatnonzero((batch.count[row][1:] > 1) & (np.diff(batch.segments[row]) == 0))
            assert batch.further[row][batch.further[row] >= 0].tolist() == several.tolist()
    if room.slots == room.further == 40:
        assert 0.4 < cuts / (joins + cuts) < 0.55  # First groups stay whole.
    assert cuts > 0
    assert equal(batches, take(rows_of(data, room=room, cut_share=0.5), 20))
    assert not equal(batches, take(rows_of(data, room=room), 20))


def groups_of(batches):
    """Returns each document's groups as the batches have them."""
    for batch in batches:
        for row in range(2):
            for number in range(1, batch.segments[row].max() + 1):
                where = batch.segments[row] == number
                groups = zip(batch.count[row][where], batch.tokens[row][where], strict=True)
                yield [tokens[:n].tolist() for n, tokens in groups]


def test_a_share_of_the_documents_has_no_groups_up_to_some_place(many):
    documents, data = many
    whole = {json.dumps(list(itertools.chain(*document))): document for document in documents}
    found = list(groups_of(take(rows_of(data, room=Room(slots=40, further=40, tokens=100), unfused_share=0.5), 40)))
    shares = []
    for groups in found:
        document = whole[json.dumps(list(itertools.chain(*groups)))]
        behind = next((i for i, group in enumerate(groups) if len(group) > 1), len(groups))
        # Behind the first group of several tokens, which may have lost its own first ones, nothing is cut.
        assert groups[behind + 1 :] == document[len(document) - len(groups[behind + 1 :]) :]
        ends = np.cumsum([len(group) for group in document])
        first = next(i for i, group in enumerate(document) if len(group) > 1)
        shares.append((behind - ends[first - 1]) / (ends[-1] - ends[first - 1]))
    untouched = sum(share == 0 for share in shares) / len(shares)
    assert 0.45 < untouched < 0.75
    # Places are drawn anywhere in a document.
    assert min(share for share in shares if share) < 0.3
    assert max(shares) == 1


def test_a_document_without_groups_that_a_row_has_no_room_for_keeps_its_last_ones(many):
    found = list(groups_of(take(rows_of(many[1], room=Room(slots=16, further=16, tokens=100), unfused_share=0.99), 20)))
    assert max(map(len, found)) == 16
    assert any(len(groups) == 16 and len(groups[-1]) > 1 for groups in found)


@pytest.mark.parametrize("further", [20, 40])
def test_single_tokens_of_replies_are_read_by_the_micro_decoder_if_asked_for(many, further):
    room = Room(slots=40, further=further, tokens=100)
    batches = take(rows_of(many[1], room=room, singles=True), 20)
    alone = 0
    for batch in batches:
        for row in range(2):
            slots = np.flatnonzero(np.diff(batch.segments[row]) == 0)
            several = slots[batch.count[row][slots + 1] > 1]
            said = slots[(batch.count[row][slots + 1] == 1) & batch.spoken[row][slots + 1]]
            given = batch.further[row][batch.further[row] >= 0].tolist()
            assert sorted(given) == given
            assert {*several.tolist()} <= {*given} <= {*several.tolist(), *said.tolist()}
            alone += len(given) - len(several)
            if further == room.slots:
                assert given == sorted([*several, *said])
    assert alone > 0
    if further == room.slots:
        # The groups themselves, and how they lie in rows, are as without.
        plain = take(rows_of(many[1], room=room), 20)
        assert equal([b._replace(further=p.further) for b, p in zip(batches, plain, strict=True)], plain)


def test_a_row_has_no_more_tokens_than_it_is_read_by(many):
    most = [
        max(batch.count.sum(1).max() for batch in take(rows_of(many[1], room=room), 20))
        for room in (Room(16, 16, 100), Room(16, 16, 100, read=30))
    ]
    assert most[0] > 30
    assert 24 < most[1] <= 30


def test_little_of_a_row_is_padding(many):
    batches = take(rows_of(many[1], room=Room(32, 32, 100)), 20)
    assert np.mean([(batch.segments > 0).mean() for batch in batches]) > 0.85
    assert [array.dtype for array in batches[0]] == [np.int32] * 4 + [np.float32, bool, bool, np.int32]


@pytest.mark.parametrize("done", [0, 3, 17])
def test_batches_go_on_where_they_stood_and_count_on(many, done):
    whole, resumed = rows_of(many[1]), rows_of(many[1])
    read = sum(tokens_of(batch) for batch in take(whole, done))
    assert whole.tokens == read
    resumed.set_state(json.loads(json.dumps(whole.get_state())))
    assert equal(take(whole, 6), take(resumed, 6))
    assert whole.tokens == resumed.tokens > read


def test_the_seed_alone_decides_the_order(many):
    assert equal(take(rows_of(many[1]), 5), take(rows_of(many[1]), 5))
    assert not equal(take(rows_of(many[1]), 5), take(rows_of(many[1], seed=2), 5))


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 4), (4, 2)])
def test_hosts_share_the_rows_that_one_host_would_read_after_a_resume_too(many, before, after):
    def hosts_of(number):
        return [rows_of(many[1], batch_size=4, cut_share=0.2, share=Share(host, number)) for host in range(number)]

    def together(hosts, count):
        return [
            [np.concatenate(column) for column in zip(*batches, strict=True)]
            for batches in zip(*(take(host, count) for host in hosts), strict=True)
        ]

    one = rows_of(many[1], batch_size=4, cut_share=0.2)
    alone, began, resumed = take(one, 11), hosts_of(before), hosts_of(after)
    assert equal(alone[:5], together(began, 5))
    for host in resumed:
        host.set_state(json.loads(json.dumps(began[-1].get_state())))
    assert equal(alone[5:], together(resumed, 6))
    assert {host.tokens for host in resumed} == {one.tokens}


def test_held_out_rows_come_once(many):
    documents, data = many
    batches = held_out_slot_batches(data, room=ROOM, micro_steps=3, batch_size=2)["a"]
    predicted = sum(len(group) for document in documents for group in document[1:])
    first = sum(batch.weights[:, 1:][np.diff(batch.segments, axis=1) == 0].sum() for batch in batches)
    assert first == predicted
    assert {batch.tokens.shape for batch in batches} == {(2, 8, 3)}
    assert len(held_out_slot_batches(data, room=ROOM, micro_steps=3, batch_size=2, rows=3)["a"]) == 2
