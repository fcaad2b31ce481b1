from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.session import Session
from tests.tiny import tiny_model


def test_samples_of_a_prompt_share_its_reading():
    model = tiny_model()
    method = make_method(model, "ar", sampled=True)
    warm = [SamplingOptions(temperature=1.0)] * 2
    session = Session(model, method, slots=64, max_new_tokens=8, sampling=warm, seeds=[0, 1], samples=3)
    # Until the prompts are read there is one row each, so a prompt cannot be read more than once.
    assert session.state.rows.token_length.shape == (2,)
    session.read([[10, 20, 30, 40], [50, 60]])
    # The prompt and the first new token.
    assert session.state.rows.token_length.tolist() == [5, 5, 5, 3, 3, 3]
    session.run(100)
    texts = [tuple(text) for text in session.outputs()]
    assert len({*texts}) == len(texts) == 6
