"""What a base makes of every packed document, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Int64

from jax_smash.cache import Block
from jax_smash.models.depth import tapped_without_cache
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.objectives import in_pieces
from jax_smash.sharding import spans_hosts
from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.replies import Replies
from train.data.rows import Batch, Packed, packed_rows
from train.data.states import Places, StatesRecord
from train.parts.drafter.objective import joined, likeliest_tokens
from train.parts.drafter.rows import ReplyPieces, as_batch
from train.parts.language_model.objective import CHUNK
from train.run.start import Stored
from train.run.step import ROWS, is_divided


class KeptStates(NamedTuple):
    """What a base makes of a batch, as it is kept: see `StateBatch`."""

    hidden: Float[Array, "B T D"]
    taps: dict[int, Float[Array, "B T D"]]
    likeliest: Int[Array, "B T"]


def reader(base: Stored, record: StatesRecord, mesh: Mesh) -> Callable[[Any, Batch], KeptStates]:
    """Returns the jitted function from a base's weights and a batch to the states of its tokens.

    Of several hosts each brings its own rows, and has the states of all.
    """
    graphdef, products = abstract_params(base.config)[0], jnp.dtype(record.products)

    def read(params: Any, batch: Batch) -> KeptStates:
        model: Transformer = nnx.merge(graphdef, jax.tree.map(lambda x: x.astype(products), params))
        block = Block.causal(batch.segments > 0, batch.segments)
        hidden, taps = tapped_without_cache(model, model.embed(batch.tokens), batch.positions, block)
        kept = (hidden, {tap: taps[tap] for tap in record.taps})
        kept = jax.tree.map(lambda x: x.astype(jnp.dtype(record.dtype)), kept)
        likeliest = likeliest_tokens(model, in_pieces(hidden, CHUNK))
        return KeptStates(*kept, likeliest=joined(likeliest, hidden.shape[1]).astype(jnp.int32))

    shardings = NamedSharding(mesh, PartitionSpec()) if spans_hosts(mesh) else None
    if not is_divided(mesh):
        whole = PartitionSpec()
        divided = jax.shard_map(read, mesh=mesh, in_specs=(whole, ROWS), out_specs=ROWS, check_vma=False)
        return jax.jit(divided, out_shardings=shardings)

    def on_mesh(params: Any, batch: Batch) -> KeptStates:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return read(params, batch)

    return jax.jit(on_mesh, out_shardings=shardings)


def every_batch(
    packed: Packed, places: Places, length: int, batch_size: int
) -> Iterator[tuple[Batch, Int64[np.ndarray, "B T"]]]:
    """Yields all pieces of all documents in batches of rows, the same each time, and the place of each token."""
    names = ("tokens", "targets", "weights", "entries")
    for source in packed.index["sources"]:
        for split in (TRAIN_SPLIT, HELD_OUT_SPLIT):
            if not source[split]["shards"]:
                continue
            pieces = ReplyPieces(packed.folder, source[split]["shards"], length, Replies(), starts=places.starts)
            rows = packed_rows(grain.MapDataset.source(pieces).to_iter_dataset(), dict.fromkeys(names, length), seed=0)
            for batch in rows.batch(batch_size):
                missing = batch_size - len(batch["tokens"])
                batch = {name: np.pad(x, ((0, missing), (0, 0))) for name, x in batch.items()}
                yield as_batch(batch), batch["entries"]
