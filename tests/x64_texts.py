"""Texts of many ways to decode, and losses of training; also a program, for a process in which JAX computes in 64 bits.

It prints one JSON object: `python -m tests.x64_texts NAME [NAME …]`, a name being one of `WAYS` or an optimiser's.
"""

import json
import sys

import jax

from jax_smash import DraftOptions, SamplingOptions, SmashOptions, generate
from jax_smash.loading import quantised
from tests.smashed import smashed_model
from tests.tiny import tiny_model

PROMPTS = ["to be or not to be, to be", "x y"]
WARM = SamplingOptions(
    temperature=0.9,
    top_k=60,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={40: 2.0},
    min_new_tokens=4,
)
SAMPLED = {"sampling": [SamplingOptions(), WARM], "seed": [1, 2]}


def drafted(method: str, **options) -> dict:
    return {"method": method, "draft": DraftOptions(**options)} | SAMPLED


def smashed(**options) -> dict:
    return {"method": "hamburger", "smash": SmashOptions(**options)} | SAMPLED


WAYS = {
    "sampled": SAMPLED | {"log_probs": 2, "prompt_log_probs": 1, "stop": "zz", "num_samples": 2},
    "grammar": {"regex": "[a-z ]{5,20}"},
    "streamed": {"on_text": lambda i, text: None},
    "recycling": drafted("recycling", tree="recycling-80"),
    "recycling-probabilities": drafted("recycling", stored_probabilities=True),
    "recycling-auto": drafted("recycling"),
    "lookup": drafted("lookup", tree="chain-4"),
    "suffix": drafted("suffix", tree="chain-4"),
    "lookahead": drafted("lookahead"),
    "hybrid": drafted("hybrid"),
    "draft-model": drafted("draft-model", draft_model="int8"),
    "rejection": drafted("draft-model", draft_model="int8", verify="rejection"),
    "rejection-independent": drafted("draft-model", draft_model="int8", verify="rejection-independent"),
    "k-seq": drafted("draft-model", draft_model="int8", verify="k-seq"),
    "typical": drafted("draft-model", draft_model="int8", verify="typical-lossy"),
    "eagle": drafted("eagle", drafter="random"),
    "eagle-confident": drafted("eagle", drafter="random", tree="confident-8:depth=3,width=3"),
    "medusa": drafted("medusa", drafter="random"),
    "self-sparse": drafted("self-sparse", tree="chain-2", sparse="quest:budget=12,page_size=4,dense_layers=0"),
    "chimera": drafted("chimera", drafter="random"),
    "dflash": drafted("dflash", drafter="random"),
    "blind": smashed(confidence=0.5),
    "blind-reduced": smashed(confidence=0.5, micro_head="16"),
    "checked": smashed(mode="checked", confidence=0.5),
    "exact": smashed(mode="exact", confidence=0.5),
    "int8": SAMPLED | {"weights": "int8"},
    "int8-recycling": drafted("recycling", tree="chain-4") | {"weights": "int8"},
    "int8-blind": smashed(confidence=0.5, micro_head="int8") | {"weights": "int8"},
    "function": SAMPLED | {"weights": "applied"},
}
"""What is given to `generate`, by name."""


def text(name: str) -> list[list[int]]:
    """Returns the tokens that a way gives."""
    request = {"max_new_tokens": 12, "slots": 96} | WAYS[name]
    model = smashed_model(stop_tokens=(10,)) if request.get("method") == "hamburger" else tiny_model(stop_tokens=(10,))
    weights = request.pop("weights", "plain")
    if weights == "int8":
        model = quantised(model)
    elif weights == "applied":
        from jax_smash import from_apply
        from tests.jax_smash.test_applied import read_at_once

        def apply_fn(params, tokens, definition=model.definition):
            return read_at_once(definition, params, tokens)

        model = from_apply(apply_fn, model.params["target"], tokenizer=model.tokenizer, stop_tokens=(10,))
    return [c.token_ids for c in generate(model, PROMPTS, **request)]


def training(optimiser: str) -> list[float]:
    """Returns the losses of three training steps."""
    from tests.train.run.test_step import trained

    return trained("data=1", optimiser=optimiser)[1]


if __name__ == "__main__":
    assert jax.config.jax_enable_x64
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", True)
    print(json.dumps({name: text(name) if name in WAYS else training(name) for name in sys.argv[1:]}))
