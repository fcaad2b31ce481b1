"""What a directory holds that is no checkpoint of ours: said in the error instead of the first file that is missing."""

import json
from pathlib import Path

SHOWN = 4
"""Names that a description lists of files that it cannot place."""

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZER = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
}
BESIDE = (".md", ".txt", ".gitattributes", ".gitignore", ".py", ".png", "LICENSE", "NOTICE")
"""Endings of files that go with anything."""

OTHER_FORMATS = {
    ".onnx": "an ONNX model",
    ".gguf": "a GGUF model",
    ".tflite": "a TensorFlow Lite model",
    ".h5": "TensorFlow weights",
    ".pb": "a TensorFlow model",
    ".msgpack": "Flax weights",
    ".mlmodel": "a Core ML model",
}

DRAFTERS = {
    "eagle.json": "EAGLE-3's drafter",
    "eagle1.json": "EAGLE-1's drafter",
    "medusa.json": "Medusa's heads",
    "chimera.json": "Chimera's drafter",
    "dflash.json": "DFlash's drafter",
}
"""What the description of a drafter is called, and what it describes."""


def contents(directory: Path) -> str:
    """Returns what a directory holds, for the end of a sentence; empty where there is nothing to say of it."""
    names = sorted(path.name for path in directory.iterdir())
    if not names:
        return "no files"
    return _whole_folder(directory, names) or _weights(directory, names) or _others(names)


def _whole_folder(directory: Path, names: list[str]) -> str:
    """Returns the kind of folder that a file of a certain name tells; empty where none does."""
    if "adapter_config.json" in names:
        return "a PEFT adapter (adapter_config.json)"
    if "model_index.json" in names:
        return f"a diffusers pipeline{_class_of(directory / 'model_index.json')} (model_index.json)"
    if "modules.json" in names or "config_sentence_transformers.json" in names:
        return "a sentence-transformers model (modules.json)"
    if "smasher.json" in names:
        return "HAMburger modules (smasher.json), which are given beside their base"
    for file, kind in DRAFTERS.items():
        if file in names:
            return f"{kind} ({file}), given by --drafter beside its target"
    if "params.json" in names and any(name.endswith(".pth") for name in names):
        return "a Llama checkpoint in Meta's own format (params.json)"
    return ""


def _weights(directory: Path, names: list[str]) -> str:
    """Returns whose weights are there, in what format; empty where there are none."""
    for path in sorted(directory.glob("*")) + sorted(directory.glob("onnx/*.onnx")):
        if path.suffix in OTHER_FORMATS and path.is_file():
            return f"{OTHER_FORMATS[path.suffix]} ({path.relative_to(directory)})"
    safe = [name for name in names if name.endswith(".safetensors")]
    if safe:
        return f"safetensors weights ({safe[0]})"
    pickled = [name for name in names if name.endswith(PICKLED)]
    if pickled:
        return f"pickled weights ({pickled[0]}), which can run code when they are read"
    return ""


def _others(names: list[str]) -> str:
    left = [name for name in names if name not in TOKENIZER and not name.endswith(BESIDE) and name != "config.json"]
    if not left:
        return "a tokenizer alone" if TOKENIZER & set(names) else ""
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    return f"{', '.join(left[:SHOWN])}{more}"


def _class_of(file: Path) -> str:
    try:
        name = json.loads(file.read_text()).get("_class_name")
    except (OSError, ValueError, AttributeError):
        return ""
    return f" of class {name}" if isinstance(name, str) else ""
