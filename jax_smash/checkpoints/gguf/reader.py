"""The reader of the `gguf` package, with a vocabulary read in one go."""

import struct
from typing import Any

import gguf
import numpy as np


class Reader(gguf.GGUFReader):
    """Reads a GGUF file's metadata and where its tensors stand.

    The package makes several arrays for every element of an array, which for a vocabulary and its merges takes
    seconds. Here an array is read whole.

    Attributes:
      arrays: the content of each array of the metadata, by key; its field holds nothing.
    """

    def __init__(self, path: Any):
        self.arrays: dict[str, list[Any]] = {}
        self._last_array: list[Any] | None = None
        super().__init__(path)

    def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> tuple[Any, list[Any], list[int], list[Any]]:
        kind = gguf.GGUFValueType(raw_type)
        if kind != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        header = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        element, count = gguf.GGUFValueType(int(header[0][0])), int(header[1][0])
        start = orig_offs + 12
        if element in self.gguf_scalar_to_np:
            values = self._get(start, self.gguf_scalar_to_np[element], count)
            if len(values) < count:
                raise IndexError(f"an array of {count} elements ends after {len(values)}")
            size, self._last_array = values.nbytes, values.tolist()
        elif element == gguf.GGUFValueType.STRING:
            size, self._last_array = self._strings(start, count)
        else:
            raise ValueError(f"an array of {element.name} is not supported")
        return 12 + size, [*header], [], [kind, element]

    def _push_field(self, field: Any, skip_sum: bool = False) -> int:
        if self._last_array is not None:
            self.arrays[field.name], self._last_array = self._last_array, None
        return super()._push_field(field, skip_sum)

    def _strings(self, start: Any, count: int) -> tuple[Any, list[str]]:
        """Returns how many bytes strings take from a place on, and the strings."""
        data, at, found = memoryview(self.data), start, []
        length = struct.Struct("<Q" if np.little_endian else ">Q")
        for _ in range(count):
            (size,) = length.unpack_from(data, at)
            text = bytes(data[at + 8 : at + 8 + size])
            if len(text) < size:
                raise IndexError(f"a text of {size} bytes ends after {len(text)}")
            found.append(text.decode())
            at += 8 + size
        return at - start, found
