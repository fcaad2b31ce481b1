"""What a folder of another kind is said to hold."""

import json

import pytest

import jax_smash
from jax_smash.checkpoints.contents import contents
from tests.checkpoints import LLAMA

FOLDERS = {
    "diffusers": (
        {"model_index.json": json.dumps({"_class_name": "FluxPipeline"}), "vae": None},
        r"a diffusers pipeline of class FluxPipeline \(model_index.json\)",
    ),
    "damaged diffusers": ({"model_index.json": "["}, r"a diffusers pipeline \(model_index.json\)"),
    "sentence-transformers": ({"modules.json": "[]", "1_Pooling": None}, "a sentence-transformers model"),
    "onnx": ({"onnx": None, "onnx/model.onnx": "", "tokenizer.json": ""}, r"an ONNX model \(onnx/model.onnx\)"),
    "pickled": ({"pytorch_model.bin": ""}, r"pickled weights \(pytorch_model.bin\), which can run code"),
    "meta": ({"params.json": "{}", "consolidated.00.pth": ""}, "a Llama checkpoint in Meta's own format"),
    "tensorflow": ({"tf_model.h5": ""}, r"TensorFlow weights \(tf_model.h5\)"),
    "weights alone": ({"model.safetensors": "", "README.md": ""}, r"safetensors weights \(model.safetensors\)"),
    "tokenizer": ({"tokenizer.json": "{}", "tokenizer_config.json": "{}", "README.md": ""}, "a tokenizer alone"),
    "modules": ({"smasher.json": "{}", "smasher.safetensors": ""}, "HAMburger modules .* beside their base"),
    "drafter": ({"eagle1.json": "{}", "eagle1.safetensors": ""}, "EAGLE-1's drafter .* by --drafter beside its target"),
    "nothing": ({}, "no files"),
    "data": ({f"part-{i}.parquet": "" for i in range(6)}, r"part-0.parquet, .* and 2 more"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_another_kind_is_named_for_what_is_in_it(name, tmp_path):
    files, said = FOLDERS[name]
    for file, text in files.items():
        if text is None:
            (tmp_path / file).mkdir()
        else:
            (tmp_path / file).write_text(text)
    with pytest.raises(FileNotFoundError, match=rf"config.json is missing; the folder holds {said}") as caught:
        jax_smash.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_configuration_with_weights_of_another_kind_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.onnx").touch()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors; it holds an ONNX model \(model.onnx\)"):
        jax_smash.load(tmp_path)


def test_nothing_is_said_of_a_folder_with_notes_alone(tmp_path):
    (tmp_path / "README.md").touch()
    assert contents(tmp_path) == ""
