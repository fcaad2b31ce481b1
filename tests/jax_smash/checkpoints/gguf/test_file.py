"""GGUF files that are whole, and ones that are not."""

import gguf
import numpy as np
import pytest

from jax_smash.checkpoints.gguf import find_gguf, open_gguf
from jax_smash.checkpoints.huggingface import read_config, resolve
from tests.checkpoints import LLAMA, random_tensors
from tests.gguf_files import write_gguf


@pytest.fixture
def path(tmp_path):
    return write_gguf(tmp_path / "model.gguf", LLAMA, random_tensors(LLAMA))


def test_a_file_is_opened_once_until_it_changes(path):
    first = open_gguf(path)
    assert open_gguf(path) is first
    write_gguf(path, LLAMA, random_tensors(LLAMA), more={"context_length": 512})
    assert open_gguf(path).own("context_length") == 512
    assert first.own("no_such_key") is None


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"model.gguf (is damaged or cut off|is not a GGUF file)"):
        read_config(path)


def test_a_file_of_another_byte_order_is_refused(tmp_path):
    path = write_gguf(tmp_path / "big.gguf", LLAMA, random_tensors(LLAMA), endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(ValueError, match=r"big.gguf is not little-endian, as this machine is"):
        read_config(path)


def test_a_file_of_another_version_is_refused(path):
    content = bytearray(path.read_bytes())
    content[4] = 9
    path.write_bytes(content)
    with pytest.raises(ValueError, match="has GGUF version 9; supported: 2, 3"):
        read_config(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ValueError, match=r"is not a GGUF file: it begins with b'PK"):
        read_config(path)


@pytest.mark.parametrize(("kind", "message"), [(99, "has a tensor of type 99, which"), (28, "has type F64, which")])
def test_a_tensor_of_an_unknown_type_is_refused(kind, message, tmp_path):
    tensors = random_tensors(LLAMA)
    path = write_gguf(tmp_path / "model.gguf", LLAMA, tensors)
    content = path.read_bytes()
    name = b"blk.0.ffn_gate.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # Behind the name: the number of axes, and two sizes.
    path.write_bytes(content[:at] + kind.to_bytes(4, "little") + content[at + 4 :] + bytes(2**16))
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_an_architecture_that_is_not_supported_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"architecture 'bert' of .* is not supported; supported: llama, qwen2"):
        read_config(path)


@pytest.mark.parametrize("key", ["block_count", "attention.layer_norm_rms_epsilon", "context_length"])
def test_a_missing_key_is_named(key, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", LLAMA, random_tensors(LLAMA), more={key: None})
    with pytest.raises(ValueError, match=rf"model.gguf must have llama.{key}; it is missing"):
        read_config(path)


def test_longrope_of_another_architecture_than_phi_is_refused(tmp_path):
    more = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2}
    path = write_gguf(tmp_path / "model.gguf", LLAMA, random_tensors(LLAMA), more=more)
    with pytest.raises(ValueError, match=r"longrope of .* is not supported for architecture llama"):
        read_config(path)


def test_a_directory_stands_for_its_one_gguf_file(path):
    assert resolve(path.parent) == path
    assert resolve(path) == path
    (path.parent / "config.json").write_text("{}")
    assert resolve(path.parent) == path.parent
    (path.parent / "config.json").unlink()
    (path.parent / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"holds 2 GGUF models: model.gguf, other.gguf; name the file"):
        find_gguf(path.parent)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model '.*nothing.gguf': it is neither a directory, a .gguf file"):
        read_config(tmp_path / "nothing.gguf")
