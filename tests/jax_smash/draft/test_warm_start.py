import os

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jax_smash import generate
from jax_smash.draft.warm_start import load_successors, save_successors, tokenizer_digest
from jax_smash.methods import DraftOptions
from tests.tiny import tiny_model
from tests.tokenizers import byte_tokenizer

MATRIX = jnp.arange(12, dtype=jnp.int32).reshape(4, 3) % 4 - 1


def loaded(path, *, vocab_size=4, width=3, tokenizer=None):
    return load_successors(path, vocab_size=vocab_size, width=width, tokenizer=tokenizer)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.safetensors"
    save_successors(path, MATRIX, tokenizer=None)
    return path


def change(path, *, matrix=MATRIX, **metadata):
    given = {"kind": "jax_smash successors", "format": "1", "method": "recycling", "tokenizer": "none"}
    save_file({"matrix": np.asarray(matrix)}, path, metadata=given | metadata)


def test_what_is_loaded_is_what_was_saved(saved):
    np.testing.assert_array_equal(loaded(saved), MATRIX)
    assert os.listdir(saved.parent) == [saved.name]


def test_any_program_can_read_the_file(saved):
    np.testing.assert_array_equal(load_file(saved)["matrix"], MATRIX)


def test_a_second_save_replaces_the_first(saved):
    save_successors(saved, MATRIX + 1, tokenizer=None)
    np.testing.assert_array_equal(load_file(saved)["matrix"], MATRIX + 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"vocab_size": 5}, "vocabulary of 5; got 4"),
        ({"width": 8}, "8 successors of each token; got 3"),
        ({"tokenizer": byte_tokenizer()}, "another tokenizer of 4 tokens"),
    ],
)
def test_a_matrix_of_something_else_is_refused_by_name(saved, asked, said):
    with pytest.raises(ValueError, match=said) as error:
        loaded(saved, **asked)
    assert str(saved) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "weights"}, "holds no matrix of successors"),
        ({"format": "2"}, "must have format 1; got 2"),
        ({"matrix": MATRIX.astype(jnp.float32)}, "damaged"),
        ({"matrix": MATRIX[0]}, "damaged"),
        ({"matrix": MATRIX - 1}, "damaged"),
        ({"matrix": MATRIX + 2}, "damaged: ids must be below 4"),
    ],
)
def test_a_damaged_file_is_refused(saved, changes, said):
    change(saved, **changes)
    with pytest.raises(ValueError, match=said):
        loaded(saved)


def test_half_a_file_is_refused(saved):
    os.truncate(saved, saved.stat().st_size // 2)
    with pytest.raises(ValueError, match="damaged, or no safetensors file"):
        loaded(saved)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to start from"):
        loaded(tmp_path / "absent")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="needs a directory"):
        save_successors(tmp_path / "absent" / "m", MATRIX, tokenizer=None)
    with pytest.raises(IsADirectoryError, match="must be a file"):
        save_successors(tmp_path, MATRIX, tokenizer=None)


def test_tokenizers_differ_where_an_id_means_something_else():
    other = byte_tokenizer.__wrapped__()
    assert tokenizer_digest(other) == tokenizer_digest(byte_tokenizer())
    other.add_tokens(["another"])
    assert tokenizer_digest(other) != tokenizer_digest(byte_tokenizer()) != tokenizer_digest(None)


def test_a_warm_start_changes_no_text_and_saves_forwards(tmp_path):
    file, tree = tmp_path / "m.safetensors", "chain-3"
    prompts = ["the cat sat on the mat", "a dog and a cat"]
    (plain, cold, warm) = (
        generate(tiny_model(), prompts, method=method, max_new_tokens=40, draft=draft)
        for method, draft in (
            ("ar", DraftOptions()),
            ("recycling", DraftOptions(tree=tree, save_warm_start=file)),
            ("recycling", DraftOptions(tree=tree, warm_start=file)),
        )
    )
    assert [c.token_ids for c in plain] == [c.token_ids for c in cold] == [c.token_ids for c in warm]
    assert sum(c.target_forwards for c in warm) < sum(c.target_forwards for c in cold)
