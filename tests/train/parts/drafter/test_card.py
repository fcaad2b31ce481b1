"""What the card of a drafter tells."""

import json

from jax_smash.loading import find
from tests.tiny import tiny_config
from train.data.rows import Packed
from train.pack import INDEX, file_sha256
from train.parts.drafter.card import drafter_card
from train.parts.drafter.medusa import MedusaPart
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.objective import RANKS
from train.parts.part import Ended
from train.run.optimiser import Optimiser

SETTINGS = MedusaSettings(model=tiny_config(), optimiser=Optimiser(warmup=1), batch_size=2, length=24, steps=2)
MEANS = {f"top{rank}_{depth}": 0.5 for rank in range(1, RANKS + 1) for depth in range(1, SETTINGS.num_heads + 1)}


def card(score=None, **options):
    ended = Ended(step=2, losses=(1.0, {"answers": 1.0}), means=MEANS, score=score)
    told = {"title": "Heads", "about": {}, "command": "jax-smash", "base_fingerprint": "ab", "depths": 2}
    return drafter_card(SETTINGS, ended, **told, **options)


def test_it_tells_how_many_prompts_were_left_out(tmp_path):
    record = {"words": 13, "left_out": 12, "of": 4000, "sha256": ["question.jsonl f7a7"]}
    index = {"tokenizer_sha256": file_sha256(find("tiny") / "tokenizer.json"), "sources": []}
    (tmp_path / INDEX).write_text(json.dumps(index | {"left_out": [{"source": "own", "file": "a.jsonl", **record}]}))
    part = MedusaPart(SETTINGS, Packed(tmp_path, find("tiny")))
    row = "| Prompts left out | 12 of 4,000 for a.jsonl: they share 13 words in a row with question.jsonl f7a7 |"
    assert row in card(left_out=part.left_out).splitlines()


def test_it_tells_of_none_where_nobody_counted(tmp_path):
    index = {"tokenizer_sha256": file_sha256(find("tiny") / "tokenizer.json"), "sources": []}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert MedusaPart(SETTINGS, Packed(tmp_path, find("tiny"))).left_out == ()
    assert "left out" not in card()


def test_it_tells_what_chose_the_step():
    assert "| Chosen | the last step |" in card()
    assert "in a row, 1.50, on documents that are neither trained on nor reported on |" in card(score=1.5)
