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
PROBABILITY = jnp.arange(12, dtype=jnp.float32).reshape(4, 3) / 11


def loaded(path, *, vocab_size=4, width=3, tokenizer=None):
    return load_successors(path, vocab_size=vocab_size, width=width, tokenizer=tokenizer)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.safetensors"
    save_successors(path, MATRIX, tokenizer=None)
    return path


def change(path, *, matrix=MATRIX, probability=None, **metadata):
    given = {"kind": "jax_smash successors", "format": "1", "method": "recycling", "tokenizer": "none"}
    arrays = {"matrix": matrix} if probability is None else {"matrix": matrix, "probability": probability}
    save_file({name: np.asarray(array) for name, array in arrays.items()}, path, metadata=given | metadata)


def test_what_is_loaded_is_what_was_saved(saved):
    matrix, probability = loaded(saved)
    np.testing.assert_array_equal(matrix, MATRIX)
    assert probability is None
    assert os.listdir(saved.parent) == [saved.name]


def test_probabilities_are_kept_beside_the_ids(saved):
    save_successors(saved, MATRIX, tokenizer=None, probability=PROBABILITY)
    matrix, probability = loaded(saved)
    np.testing.assert_array_equal(matrix, MATRIX)
    np.testing.assert_array_equal(probability, PROBABILITY)


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
        ({"probability": PROBABILITY[:3]}, "damaged: probability must be float32"),
        ({"probability": MATRIX}, "damaged: probability must be float32"),
        ({"probability": PROBABILITY + 1}, "damaged: probabilities must be from 0 to 1; got 1.0 to 2.0"),
        ({"probability": PROBABILITY * jnp.nan}, "damaged: probabilities must be from 0 to 1"),
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


@pytest.mark.parametrize(
    ("saving", "loading"), [(False, False), (True, True), (False, True), (True, False)], ids=lambda kept: f"{kept}"
)
def test_a_warm_start_changes_no_text_and_saves_forwards(tmp_path, saving, loading):
    """Either drafter begins with either file: with and without probabilities."""
    file, tree = tmp_path / "m.safetensors", "chain-3"
    model = tiny_model(num_layers=1, layer_kinds=("full",))
    prompts = ["the cat sat on the mat", "a dog and a cat"]
    (plain, cold, warm) = (
        generate(model, prompts, method=method, max_new_tokens=40, draft=draft)
        for method, draft in (
            ("ar", DraftOptions()),
            ("recycling", DraftOptions(tree=tree, save_warm_start=file, stored_probabilities=saving)),
            ("recycling", DraftOptions(tree=tree, warm_start=file, stored_probabilities=loading)),
        )
    )
    assert ("probability" in load_file(file)) is saving
    assert [c.token_ids for c in plain] == [c.token_ids for c in cold] == [c.token_ids for c in warm]
    assert sum(c.target_forwards for c in warm) < sum(c.target_forwards for c in cold)
