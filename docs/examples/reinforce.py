"""Trains a model by reinforcement: REINFORCE on a toy reward, its texts sampled inside the training step.

python docs/examples/reinforce.py
"""

import jax
import jax.numpy as jnp
import optax

import jax_smash

ROWS, NEW_TOKENS, STEPS = 16, 16, 20

model = jax_smash.load("tiny")
definition = model.definition
prompt = jnp.asarray(model.tokenizer(["Once upon a time"] * ROWS)["input_ids"], jnp.int32)
# The reward of a text: the share of its tokens that have an "s".
rewarded = jnp.asarray(["s" in model.tokenizer.decode([token]) for token in range(model.config.vocab_size)])
optimiser = optax.adam(1e-4)


def log_probs(params, text):
    """Returns the log-probability of each token after the prompt, differentiable."""
    target = definition.bind(params)
    position = jnp.broadcast_to(jnp.arange(text.shape[1])[None], text.shape)
    out = target.forward(target.embed(text), position, None, jax_smash.Block.causal(jnp.ones_like(text, bool)))
    logits = target.unembed(out.hidden)[:, prompt.shape[1] - 1 : -1]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, text[:, prompt.shape[1] :]) * -1


@jax.jit
def step(params, state, key):
    """Samples texts with these weights, and makes those of more reward likelier."""
    texts = jax_smash.rollout(definition, params, prompt, key, max_new_tokens=NEW_TOKENS)
    reward = rewarded[texts.tokens].mean(1)

    def loss(params):
        told = log_probs(params, jnp.concatenate([prompt, texts.tokens], axis=1))
        return -((reward - reward.mean()) * told.sum(1)).mean()

    updates, state = optimiser.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state, reward.mean()


def train(steps=STEPS):
    """Yields the mean reward of each step's texts."""
    params = model.params["target"]
    state = optimiser.init(params)
    for i in range(steps):
        params, state, reward = step(params, state, jax.random.key(i))
        yield float(reward)


if __name__ == "__main__":
    for i, reward in enumerate(train()):
        print(f"step {i}: reward {reward:.3f}")
