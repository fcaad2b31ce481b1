import dataclasses
import json

import pytest

from jax_smash.config import RopeConfig
from jax_smash.models.families.presets import preset
from jax_smash.smash.config import SmashConfig, base_sha256, micro_model
from tests.smashers import BASES
from tests.tiny import tiny_config


def test_a_base_of_sixteen_layers_is_tapped_as_in_the_paper():
    config = SmashConfig.for_base(preset("llama-3.2-1b"))
    assert config.tapped_layers == (3, 7, 11, 15)
    assert (config.micro_layers, config.micro_steps, config.embedder_heads) == (4, 4, 64)


@pytest.mark.parametrize(("layers", "taps"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (10, (1, 4, 6, 9))])
def test_the_last_layer_of_any_base_is_tapped(layers, taps):
    base = tiny_config(num_layers=layers, layer_kinds=("full",) * layers)
    assert SmashConfig.for_base(base).tapped_layers == taps


@pytest.mark.parametrize("name", BASES)
def test_the_micro_layers_are_the_bases_own(name):
    base = BASES[name]
    micro = micro_model(base, 3)
    for field in dataclasses.fields(base):
        if field.name not in ("num_layers", "layer_kinds", "window", "rope", "rope_sliding", "unrotated_layers"):
            assert getattr(micro, field.name) == getattr(base, field.name)
    assert (micro.num_layers, micro.layer_kinds, micro.unrotated_layers) == (3, ("full",) * 3, ())
    assert micro.rope == (RopeConfig(base=500.0) if name == "all-sliding" else base.rope)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"micro_steps": 0}, "micro_steps must be at least 1; got 0"),
        ({"micro_steps": 65}, "micro_steps must be at most 64; got 65"),
        ({"micro_layers": 0}, "micro_layers must be at least 1; got 0"),
        ({"tapped_layers": (1, 4)}, r"tapped_layers must be layers of the base, 0 to 3; got 4"),
        ({"tapped_layers": (-1, 2)}, r"tapped_layers must be layers of the base, 0 to 3; got -1"),
        ({"tapped_layers": (2, 1)}, r"one or more layers in order, each once; got \(2, 1\)"),
        ({"tapped_layers": (1, 1)}, r"one or more layers in order, each once; got \(1, 1\)"),
        ({"tapped_layers": ()}, r"one or more layers in order, each once; got \(\)"),
        ({"embedder": "max"}, "embedder must be one of attention, mean; got 'max'"),
        ({"embedder_heads": 5}, "embedder_heads must divide the base's width of 32; got 5"),
    ],
)
def test_what_is_out_of_range_is_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        SmashConfig.for_base(BASES["llama"], **sizes)


def test_another_base_or_tokenizer_is_refused():
    base = BASES["llama"]
    config = SmashConfig.for_base(base, tokenizer_sha256="abc")
    config.check_base(base, "abc")
    with pytest.raises(ValueError, match="made for a base whose configuration has hash"):
        config.check_base(dataclasses.replace(base, mlp_width=64), "abc")
    with pytest.raises(ValueError, match="made for the tokenizer of hash abc; got def"):
        config.check_base(base, "def")
    with pytest.raises(ValueError, match="made for the tokenizer of hash abc; got none"):
        config.check_base(base)


def test_fields_that_no_layer_uses_do_not_make_another_base():
    base = BASES["llama"]
    assert base_sha256(base) == base_sha256(dataclasses.replace(base, window=99, rope_sliding=RopeConfig(base=3.0)))
    assert base_sha256(base) != base_sha256(dataclasses.replace(base, rope=RopeConfig(base=3.0)))
    assert len({base_sha256(b) for b in BASES.values()}) == len(BASES)


def test_the_configuration_survives_json():
    config = SmashConfig.for_base(BASES["qwen2"], micro_steps=3, tapped_layers=(1,), tokenizer_sha256="abc")
    fields = json.loads(json.dumps(config.to_fields()))
    assert SmashConfig.from_fields(fields) == config
    with pytest.raises(ValueError, match="unknown field 'colour'"):
        SmashConfig.from_fields(fields | {"colour": 1})
    with pytest.raises(ValueError, match="tapped_layers must be a list of layers; got 3"):
        SmashConfig.from_fields(fields | {"tapped_layers": 3})
    with pytest.raises(ValueError, match=r"micro_layers must be a whole number; got 2\.5"):
        SmashConfig.from_fields(fields | {"micro_layers": 2.5})
    with pytest.raises(ValueError, match="micro_steps is missing"):
        SmashConfig.from_fields({name: value for name, value in fields.items() if name != "micro_steps"})
