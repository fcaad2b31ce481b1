import re
import shutil

import jax.numpy as jnp
import pytest
import tensorstore

from train.run.checkpoint import Checkpoints, load_newest
from train.run.parts import missing_part

TREE = {"a": jnp.arange(5000, dtype=jnp.float32)}
"""Large enough to lie outside of the index."""


@pytest.fixture
def saved(tmp_path):
    """The folder of checkpoints with one of step 1."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, TREE)
    return tmp_path


def test_a_whole_checkpoint_lacks_nothing(saved):
    assert missing_part(saved / "1" / "state") is None


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("ocdbt.process_0", r"lacks the part of host 0: state/ocdbt\.process_0 is missing"),
        ("ocdbt.process_0/d/*", r"lacks the part of host 0: state/ocdbt\.process_0/d/\w+ is missing"),
        ("d", r"lacks the index of its parts: state/d/\w+ is missing"),
        ("manifest.ocdbt", "Manifest not found"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_read(saved, removed, said):
    for path in (saved / "1" / "state").glob(removed):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=rf"1 is damaged: .*{said}"):
        load_newest(saved, TREE)


def test_a_file_that_was_cut_off_is_named_with_its_bytes(saved):
    (path,) = (saved / "1" / "state" / "ocdbt.process_0" / "d").iterdir()
    path.write_bytes(path.read_bytes()[:9000])
    said = rf"lacks the part of host 0: state/ocdbt.process_0/d/{path.name} must have \d+ bytes or more; got 9000"
    assert re.search(said, missing_part(saved / "1" / "state"))


def test_an_index_of_several_levels_is_read_to_its_leaves(tmp_path):
    state = tmp_path / "state"
    config = {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 1}
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{state}/", "config": config}).result()
    for number in range(40):
        store.write(f"key{number:04}".encode(), b"x" * 20).result()
    assert missing_part(state) is None
    for path in sorted((state / "d").iterdir()):
        kept = path.read_bytes()
        path.unlink()
        found = missing_part(state)
        path.write_bytes(kept)
        if found is not None:
            break
    assert found == f"it lacks the index of its parts: state/d/{path.name} is missing"
