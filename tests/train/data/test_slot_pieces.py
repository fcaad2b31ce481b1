import json
import shutil

import numpy as np
import pytest

from jax_smash.smash.config import SmashConfig, base_sha256
from tests.tiny import tiny_config
from tests.train.corpus_files import make_packed, make_tokenizer
from tests.train.segmented_files import write_segmented
from train.data.slot_pieces import Room, Segmented

# Groups of a document: tokens count on from its first.
LONG = [[10], [11], [12, 13, 14], [15], [16, 17], [18], [19, 20], [21]]
SHORT = [[30], [31, 32]]
ROOMY = Room(slots=50, further=50, tokens=100)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "it")


@pytest.fixture
def segmented(tmp_path, tokenizer):
    return Segmented(write_segmented(tmp_path / "it", tokenizer, [LONG, SHORT, [[40]]]), tokenizer)


def groups(piece):
    begins = np.flatnonzero(piece.places == 0)
    return [part.tolist() for part in np.split(piece.tokens, begins[1:])]


def cut(segmented, **room):
    pieces = segmented.slot_pieces("train", Room(**({"slots": 50, "further": 50, "tokens": 100} | room)))["a"]
    return [groups(pieces[i]) for i in range(len(pieces))]


def test_documents_that_fit_are_whole(segmented):
    assert cut(segmented) == [LONG, SHORT, [[40]]]


def test_long_documents_are_cut_at_borders_of_groups(segmented):
    assert cut(segmented, slots=4)[:-2] == [LONG[:4], LONG[3:7], LONG[6:]]


def test_a_piece_has_no_more_groups_of_several_tokens_to_predict_than_a_row_has_room_for(segmented):
    # The first group of a piece is not predicted: [12, 13, 14] counts in the first piece, [19, 20] in the last.
    assert cut(segmented, further=1)[:-2] == [LONG[:4], LONG[3:6], LONG[5:]]


def test_a_piece_has_no_more_tokens_than_the_base_has_positions(segmented):
    assert cut(segmented, tokens=5)[:-2] == [LONG[:3], LONG[2:4], LONG[3:6], LONG[5:]]
    assert all(sum(map(len, piece)) <= 4 for piece in cut(segmented, tokens=4))


@pytest.mark.parametrize("room", [{"slots": 2}, {"slots": 3, "further": 1}, {"tokens": 6}, {"slots": 5, "tokens": 7}])
def test_each_group_but_a_documents_first_is_predicted_once(segmented, room):
    predicted = [group for piece in cut(segmented, **room) for group in piece[1:]]
    assert predicted == LONG[1:] + SHORT[1:]


def test_replies_are_marked_as_they_were_when_the_document_was_segmented(tmp_path, tokenizer):
    chat = [[7], [50], [9], [51, 52], [53, 8], [54], [9], [55, 56], [8]]
    data = Segmented(write_segmented(tmp_path / "it", tokenizer, [chat], begins=(9,), ends=(8,)), tokenizer)
    pieces = data.slot_pieces("train", Room(4, 4, 100))["a"]
    # The second piece begins within the first reply.
    assert [pieces[i].replies.tolist() for i in range(2)] == [
        [False, False, False, True, True],
        [True, True, True, True, False, False],
    ]
    counts = data.reply_counts(60, Room(4, 4, 100))
    assert {int(t): int(counts[t]) for t in np.flatnonzero(counts)} == {8: 2, 51: 1, 52: 1, 53: 1, 55: 1, 56: 1}
    answers = [[7], [50], [-51, -52], [53], [-54], [55]]
    data = Segmented(write_segmented(tmp_path / "answers", tokenizer, [answers], answers_alone=True), tokenizer)
    [piece] = data.slot_pieces("train", ROOMY)["a"]
    assert piece.replies.tolist() == [False, False, True, True, False, True, True]


def test_segmented_data_of_another_kind_is_refused_by_name(tmp_path, tokenizer):
    base = tiny_config()
    data = Segmented(write_segmented(tmp_path / "it", tokenizer, [SHORT], base_sha256=base_sha256(base)), tokenizer)
    data.check(base, SmashConfig.for_base(base, micro_steps=3))
    with pytest.raises(ValueError, match=r"micro_steps must be at least the 3 of .*it; got 2"):
        data.check(base, SmashConfig.for_base(base, micro_steps=2))
    other = tiny_config(mlp_width=56)
    with pytest.raises(
        ValueError, match=r"segmented by a base whose configuration has hash [0-9a-f]{64}; got [0-9a-f]"
    ):
        data.check(other, SmashConfig.for_base(other, micro_steps=3))


def test_packed_data_that_was_not_segmented_is_refused(tmp_path):
    folder, tokenizer = make_packed(tmp_path)
    with pytest.raises(ValueError, match=r"packed must be segmented by train\.segment; it is packed alone"):
        Segmented(folder, tokenizer)


def test_what_is_damaged_is_named(segmented, tokenizer, tmp_path):
    def damaged(name, change):
        shutil.copytree(segmented.folder, tmp_path / name)
        change(tmp_path / name)
        return tmp_path / name

    def shortened(folder):
        file = folder / "train-a-00000.places.npy"
        np.save(file, np.load(file)[:-1])

    def reaching(folder):
        file = folder / "train-a-00000.places.npy"
        places = np.load(file)
        places[12] = places[11] + 1  # The second document's first token joins the first's last group.
        np.save(file, places)

    def skipping(folder):
        file = folder / "train-a-00000.places.npy"
        np.save(file, np.load(file) * 2)

    def unread(folder):
        index = json.loads((folder / "index.json").read_text())
        del index["segmentation"]["reading"]
        (folder / "index.json").write_text(json.dumps(index))

    folder = damaged("short", shortened)
    with pytest.raises(ValueError, match=r"must hold 16 tokens; got \(16,\), marks of \(16,\) and places of \(15,\)"):
        Segmented(folder, tokenizer).slot_pieces("train", ROOMY)
    for name, change in (("reaching", reaching), ("skipping", skipping)):
        folder = damaged(name, change)
        with pytest.raises(ValueError, match=r"places\.npy must count the tokens of each group from 0"):
            Segmented(folder, tokenizer).slot_pieces("train", ROOMY)
    with pytest.raises(ValueError, match="unread cannot be read as segmented data: 'reading' is missing"):
        Segmented(damaged("unread", unread), tokenizer)


@pytest.mark.parametrize("room", [{"slots": 1}, {"further": 0}, {"tokens": 1}])
def test_a_row_must_have_room(room):
    with pytest.raises(ValueError, match="a row must have room for 2 slots, 2 tokens and a group of several; got"):
        Room(**({"slots": 50, "further": 50, "tokens": 100} | room))
