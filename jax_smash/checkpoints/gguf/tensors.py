"""The tensors of a GGUF file as those of a Hugging Face checkpoint: names, order of rows, offsets, dtype.

Names come from the `gguf` package's own tables. What else a writer of GGUF changes is undone here: it interleaves the
two halves of each rotary pair in the rows of queries and keys for some architectures, and stores 1 + w for a norm that
scales by 1 + w.
"""

from concurrent.futures import Executor

import jax.numpy as jnp
import numpy as np

from jax_smash.checkpoints.fit import Shape, check_fit
from jax_smash.checkpoints.gguf.config import ROPE_TENSORS, architecture_of
from jax_smash.checkpoints.gguf.file import GgufFile
from jax_smash.checkpoints.held import Box
from jax_smash.checkpoints.shards import cast_into, pieces
from jax_smash.config import ModelConfig
from jax_smash.models.families import tensor_map, tensor_shapes


class GgufTensors:
    """The tensors of a GGUF file, read as those of a Hugging Face checkpoint.

    Attributes:
      path: of the file.
      shapes: shape of each tensor, by its name in a Hugging Face checkpoint.
      dtype: that of the matrices where they all have one; float32 where some are quantised.
    """

    def __init__(self, file: GgufFile, config: ModelConfig):
        """Matches the file's tensors with those that the configuration calls for.

        Raises:
          ValueError: a tensor is missing, unexpected or of another shape.
        """
        self.path = file.path
        self._file, self._config = file, config
        self._architecture = architecture_of(file)
        expected = tensor_shapes(tensor_map(config))
        self._names = _gguf_names(file, config, expected)
        found = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in file.tensors.items()
            if name not in ROPE_TENSORS
        }
        check_fit(self.path, {self._names[plain]: shape for plain, shape in expected.items()}, found)
        self.shapes: dict[str, Shape] = expected
        self.dtype = _dtype(file)

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """The dtype that each tensor has once it is decoded."""
        return dict.fromkeys(self.shapes, self.dtype)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Returns rows of a tensor as float32, in a Hugging Face checkpoint's order."""
        import gguf

        tensor = self._file.tensors[self._names[name]]
        rows: slice | np.ndarray = slice(start, stop)
        if self._architecture.interleaved and (heads := self._heads(name)):
            rows = _interleaved_rows(self.shapes[name][0] // heads, start, stop)
        stored = np.asarray(tensor.data[rows])
        # In one long row: `dequantize` would go through the rows of a matrix 16 at a time.
        decoded = gguf.dequantize(stored.reshape(1, -1), tensor.tensor_type)
        decoded = np.asarray(decoded, np.float32).reshape(stored.shape[0], *[-1] * (stored.ndim - 1))
        if self._architecture.norm_offset and name.endswith("norm.weight"):
            decoded = decoded - np.float32(self._architecture.norm_offset)
        return decoded

    def read_into(
        self,
        name: str,
        view: np.ndarray,
        dtype: np.dtype,
        pool: Executor,
        *,
        start: int,
        rows: int,
        region: Box | None = None,
    ) -> None:
        """Writes rows of a tensor into a view, cast to a dtype; see `Shards.read_into`. It reads them all."""
        each = rows // view.shape[0]

        def move(piece: slice) -> None:
            weights = self.read(name, start + piece.start * each, start + piece.stop * each)
            cast_into(view[piece], weights, dtype, f"{self._names[name]} in {self.path}")

        list(pool.map(move, pieces(view)))

    def _heads(self, name: str) -> int:
        """Returns how many heads a tensor has whose rows are interleaved; 0 for any other tensor."""
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else 0


def _gguf_names(file: GgufFile, config: ModelConfig, names: dict[str, Shape]) -> dict[str, str]:
    """Returns the file's name of each tensor, by its name in a Hugging Face checkpoint."""
    import gguf

    architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == file.architecture)
    table = gguf.get_tensor_name_map(architecture, config.num_layers)
    return {name: table.get_name(name, try_suffixes=(".weight", ".bias")) or name for name in names}


def _interleaved_rows(width: int, start: int, stop: int) -> np.ndarray:
    """Returns where rows of a Hugging Face checkpoint stand in the file: there the halves of a head alternate.

    Args:
      width: rows of a head.
      start, stop: the rows that are asked for.
    """
    head, row = np.divmod(np.arange(start, stop), width)
    half, pair = np.divmod(row, width // 2)
    return head * width + 2 * pair + half


def _dtype(file: GgufFile) -> np.dtype:
    """Returns the dtype of the matrices where they all have one; norms are always float32."""
    import gguf

    plain = {
        gguf.GGMLQuantizationType.F16: np.dtype(np.float16),
        gguf.GGMLQuantizationType.BF16: np.dtype(jnp.bfloat16),
    }
    kinds = {tensor.tensor_type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return plain.get(next(iter(kinds)), np.dtype(np.float32)) if len(kinds) == 1 else np.dtype(np.float32)
