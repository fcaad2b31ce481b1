"""The modules that are grafted on a base, as one."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.config import ModelConfig
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.embedder import alone, make_embedder
from jax_smash.smash.micro_decoder import MicroDecoder, tap_prefix
from jax_smash.smash.stop_head import StopHead


class Smasher(nnx.Module):
    """Embedder, micro-step decoder and stop head of one base. Holds weights only; the base is not among them.

    Vectors come in and go out in the base's dtype, whatever the modules' weights are in.

    Source: Liu and Zhang 2025, "HAMburger: Accelerating LLM Inference via Token Smashing".
    """

    def __init__(self, base: ModelConfig, config: SmashConfig, *, rngs: nnx.Rngs, dtype: Any = jnp.float32):
        config.check_sizes(base)
        self.config = config
        self.embedder = make_embedder(base, config, rngs=rngs, dtype=dtype)
        self.micro_decoder = MicroDecoder(base, config, rngs=rngs, dtype=dtype)
        self.stop_head = StopHead(base, rngs=rngs, dtype=dtype)

    def fuse(self, vectors: Float[Array, "*batch J D"], count: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
        """Returns the input vector of each group's slot; a token alone passes unchanged.

        Args:
          vectors: of each group's tokens, from `CausalLM.embed`; anything behind the first `count`.
          count: tokens of each group; 0 (padding) gives zeros.
        """
        return self.embedder(vectors, count)

    def fuse_some(self, vectors: Float[Array, "B J D"], count: Int[Array, "B"]) -> Float[Array, "B D"]:
        """Returns what `fuse` does. Where no group has several tokens, as is common, none of its weights are read."""
        embedder = self.embedder
        # Out here, they are made once for all steps of a loop.
        places: Any = embedder.places()
        return jax.lax.cond((count > 1).any(), lambda x, n: embedder(x, n, places), alone, vectors, count)

    def prefix(
        self, taps: tuple[Float[Array, "B T D"], ...], hidden: Float[Array, "B T D"]
    ) -> Float[Array, "B T taps D"]:
        """Returns what the micro-step decoder reads of each entry of a forward of the base. See `tap_prefix`."""
        return tap_prefix(self.config, taps, hidden, len(taps) - 1)

    def spoken(
        self,
        prefix: Float[Array, "*batch taps D"],
        hidden: Float[Array, "*batch D"],
        vectors: Float[Array, "*batch J D"],
        *,
        remat: bool = False,
    ) -> Float[Array, "*batch J D"]:
        """Returns the hidden vectors that the tokens of the group after each slot are read from, in training.

        The first is the base's own; the others are the micro-step decoder's, which is given the tokens before. The
        base's head makes logits of them, the stop head says where the group ends.

        Args:
          prefix: tapped vectors of each slot, from `prefix`.
          hidden: final hidden state of each slot.
          vectors: of the tokens of the group that follows, from `CausalLM.embed`; what is behind a group's last token
            is anything, and so is what it gives.
          remat: as in `MicroDecoder.taught`.
        """
        first = hidden[..., None, :]
        if vectors.shape[-2] == 1:
            return first
        others = self.micro_decoder.taught(prefix, vectors[..., :-1, :], remat=remat)
        return jnp.concatenate([first, others.astype(first.dtype)], axis=-2)

    def stop_logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch"]:
        """Returns the logit, float32, of the probability that a group ends with the token read from each vector."""
        return self.stop_head(hidden)


class SmasherDef:
    """The structure of a `Smasher` without its parameters; hashable, compared by structure, so a strategy may hold it.

    What `models.definition.NnxModel` is to a model.
    """

    def __init__(self, graphdef: nnx.GraphDef):
        self.graphdef = graphdef
        self._hash = hash(graphdef)

    def bind(self, params: Any) -> Smasher:
        """Returns the modules with these parameters."""
        return nnx.merge(self.graphdef, params)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SmasherDef) and self.graphdef == other.graphdef)


def abstract_smasher(
    base: ModelConfig, config: SmashConfig, dtype: Any = jnp.float32
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the modules' structure, and their parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: Smasher(base, config, rngs=nnx.Rngs(0), dtype=dtype)))


def random_smasher(
    base: ModelConfig, config: SmashConfig, seed: int = 0, dtype: Any = jnp.float32
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the modules' structure and randomly initialised parameters."""
    return nnx.split(Smasher(base, config, rngs=nnx.Rngs(seed), dtype=dtype))
