import importlib.util
from pathlib import Path

import jax_smash

EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "examples" / "another_model.py"


def example():
    spec = importlib.util.spec_from_file_location("another_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_of_another_kind_decodes_and_rows_do_not_touch():
    model = example().make()
    assert isinstance(model.definition.bind(model.params["target"]), jax_smash.CausalLM)
    prompts = [[72, 101, 108], [1, 2, 3, 4], [9]]
    together = jax_smash.generate(model, prompts, max_new_tokens=12)
    for prompt, completion in zip(prompts, together, strict=True):
        alone = jax_smash.generate(model, [prompt], max_new_tokens=12)[0]
        assert completion.token_ids == alone.token_ids
    assert len({tuple(c.token_ids) for c in together}) == 3


def test_its_text_is_that_of_the_plain_recurrence():
    import numpy as np

    model = example().make()
    params = {k: np.asarray(v, np.float64) for k, v in model.params["target"].items()}
    tokens, state = [72, 101, 108], np.zeros(64)
    for token in tokens:
        state = 0.9 * state + params["embedding"][token]
    expected = []
    for _ in range(12):
        expected.append(int((params["head"] @ np.tanh(state)).argmax()))
        state = 0.9 * state + params["embedding"][expected[-1]]
    assert jax_smash.generate(model, [tokens], max_new_tokens=12)[0].token_ids == expected
