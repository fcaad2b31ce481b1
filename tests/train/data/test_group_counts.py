import json

import numpy as np

from train.data.group_counts import EDGES, GroupCounts, plot_groups


def test_groups_of_replies_are_counted_and_slots_of_all():
    #                 prompt | groups of 3, 1 and 2
    place = np.array([0, 0, 0, 1, 2, 0, 0, 1], np.uint8)
    replies = np.array([0, 0, 1, 1, 1, 1, 1, 1], bool)
    entropy = np.array([0, 9, 2, 0.5, 0.1, 3, 1, 0], np.float32)
    counts = GroupCounts(4)
    counts.add(place, entropy, replies)
    assert (counts.tokens, counts.slots, counts.reply_tokens) == (8, 5, 6)
    assert counts.group_lengths.tolist() == [1, 1, 1, 0]
    assert counts.tokens_a_group == 2.0
    assert counts.tokens_a_slot == 1.6
    np.testing.assert_allclose(counts.reply_nats, 6.6, rtol=1e-6)
    assert (counts.first_entropy.sum(), counts.joined_entropy.sum()) == (3, 3)
    middle = (EDGES[1:] > 2) & (EDGES[:-1] <= 2)
    assert counts.first_entropy[middle].tolist() == [1]


def test_counts_add_up_and_survive_json():
    rng = np.random.default_rng(0)
    whole, halves = GroupCounts(2), GroupCounts(2)
    place, entropy, replies = np.zeros(50, np.uint8), rng.random(50).astype(np.float32), rng.random(50) > 0.5
    place[1::2] = 1
    whole.add(place, entropy, replies)
    for part in (slice(0, 20), slice(20, 50)):
        halves = GroupCounts(2, json.loads(json.dumps(halves.fields)))
        halves.add(place[part], entropy[part], replies[part])
    assert halves.fields | {"reply_nats": 0} == whole.fields | {"reply_nats": 0}
    np.testing.assert_allclose(halves.reply_nats, whole.reply_nats)


def test_a_picture_is_drawn_even_of_nothing(tmp_path):
    plot_groups({"train-a": GroupCounts(4), "held_out-a": GroupCounts(4)}, tmp_path / "a.png", title="groups")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
