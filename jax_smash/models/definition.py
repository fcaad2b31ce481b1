"""A module without its parameters, as strategies hold it."""

from typing import Any, Generic, TypeVar

from flax import nnx

Module = TypeVar("Module")


class NnxModel(Generic[Module]):
    """The structure of an NNX module, such as one that satisfies `CausalLM`; hashable, compared by structure."""

    def __init__(self, graphdef: nnx.GraphDef):
        self.graphdef = graphdef
        self._hash = hash(graphdef)  # Taken once: it walks the whole graph, and every call of a program asks for it.

    def bind(self, params: Any) -> Module:
        """Returns the module with these parameters."""
        return nnx.merge(self.graphdef, params)

    def __repr__(self) -> str:
        """Names the module's class: the structure itself is long."""
        return f"NnxModel({getattr(self.graphdef.nodes[0], 'type', type(self.graphdef)).__name__})"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NnxModel) and self.graphdef == other.graphdef)
