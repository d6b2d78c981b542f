"""The graph of an ONNX file, read once for all that bounds its opening, without decoding a tensor."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, prod
from typing import Final

from repoagent.onnx_files.external_files import Buffer, Span, fields, varint

_WIDTHS: Final = {2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 8: 32, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a tensor or a value, as the file has it. ``elements`` is infinite where that is not known."""

    rank: int
    elements: float
    data_type: int = 0

    @property
    def bytes(self) -> int:
        """Of a tensor, whose elements are known."""
        return int(self.elements) * _WIDTHS.get(self.data_type, 4)


@dataclass(slots=True)
class Node:
    """One node, and what its attributes hold."""

    operator: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensor: Shape | None = None
    integers: int = 0
    bytes: int = 0
    has_graphs: bool = False


@dataclass(slots=True)
class Graph:
    """The main graph with those inside it; the nodes of a branch come before the node that has it."""

    nodes: list[Node] = field(default_factory=list)
    initializers: list[tuple[str, Shape]] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    declared: list[tuple[str, Shape]] = field(default_factory=list)
    functions: dict[str, list[str]] = field(default_factory=dict)
    """The operators of each; names are taken without their domains."""
    readable: bool = True
    """False: it is cut off, not ONNX, or has sparse tensors."""
    usual: bool = True
    """False: an attribute has several graphs, or a value is not a tensor."""


def read_graph(model: Buffer) -> Graph:
    """Read the file with the contents ``model``."""
    reader = _Reader(model)
    try:
        for number, span in fields(model, (0, len(model))):
            if number == 7:
                reader.graph(span, reader.found.nodes)
            elif number == 25:
                reader.function(span)
    except (ValueError, IndexError, RecursionError):
        reader.found.readable = False
    return reader.found


class _Reader:
    def __init__(self, model: Buffer) -> None:
        self._model = model
        self.found = Graph()

    def _text(self, span: Span) -> str:
        return self._model[slice(*span)].decode()

    def graph(self, place: Span, nodes: list[Node]) -> None:
        """Add what a graph has, its nodes to ``nodes``."""
        for number, span in fields(self._model, place):
            if number == 1:
                nodes.append(self._node(span, nodes))
            elif number == 5:
                self.found.initializers.append(self._tensor(span))
            elif number in (11, 12, 13):
                self._declaration(span, is_input=number == 11)
            elif number == 15:
                raise ValueError("a sparse initializer")

    def function(self, place: Span) -> None:
        """Add a function."""
        name, nodes = "", list[Node]()
        for number, span in fields(self._model, place):
            if number == 1:
                name = self._text(span)
            elif number == 7:
                nodes.append(self._node(span, nodes))
        self.found.functions.setdefault(name, []).extend(node.operator.rpartition(".")[2] for node in nodes)

    def _node(self, place: Span, nodes: list[Node]) -> Node:
        node = Node()
        for number, span in fields(self._model, place):
            if number == 1 and span[1] > span[0]:
                node.inputs.append(self._text(span))
            elif number == 2 and span[1] > span[0]:
                node.outputs.append(self._text(span))
            elif number == 4:
                node.operator = self._text(span)
            elif number == 5:
                self._attribute(span, node, nodes)
            elif number == 7:
                node.domain = self._text(span)
        return node

    def _attribute(self, place: Span, node: Node, nodes: list[Node]) -> None:
        for number, value in fields(self._model, place, numbers=True):
            if number == 8:
                node.integers += 1 if isinstance(value, int) else value[1] - value[0]
            if isinstance(value, int):
                continue
            if number in (6, 11):
                node.has_graphs = True
                self.found.usual &= number == 6
                self.graph(value, nodes)
            elif number in (22, 23):
                raise ValueError("a sparse constant")
            elif number == 5:
                node.tensor = self._tensor(value)[1]
                node.bytes += node.tensor.bytes
            else:
                node.bytes += value[1] - value[0]

    def _tensor(self, place: Span) -> tuple[str, Shape]:
        """The name of a tensor, and its shape by its dims; its values need not be in this file."""
        name, dims, data_type = "", list[int](), 0
        for number, value in fields(self._model, place, numbers=True):
            if number == 1:
                dims += [value] if isinstance(value, int) else self._packed(value)
            elif number == 2 and isinstance(value, int):
                data_type = value
            elif number == 8 and not isinstance(value, int):
                name = self._text(value)
        return name, Shape(len(dims), prod(dims), data_type)

    def _packed(self, place: Span) -> Iterator[int]:
        position, end = place
        while position < end:
            value, position = varint(self._model, position)
            yield value

    def _declaration(self, place: Span, *, is_input: bool) -> None:
        """Add the name and the shape of a ``ValueInfoProto``; dims without a number have names, or nothing."""
        name, rank, elements = "", 0, 1.0
        pending = [(0, place)]
        while pending:
            depth, span = pending.pop()
            for number, inner in fields(self._model, span):
                if (depth, number) == (0, 1):
                    name = self._text(inner)
                elif (depth, number) in ((0, 2), (1, 1), (1, 8), (2, 2)):  # its type, a tensor (or a sparse one), shape
                    pending.append((depth + 1, inner))
                elif depth == 1:
                    self.found.usual = False  # a sequence, a map or an optional value
                elif (depth, number) == (3, 1):
                    rank += 1
                    sizes = [value for part, value in fields(self._model, inner, numbers=True) if part == 1]
                    elements *= sizes[0] if sizes and isinstance(sizes[0], int) else inf
        shape = Shape(rank, elements if rank else inf)
        self.found.declared.append((name, shape))
        if is_input:
            self.found.inputs[name] = shape
