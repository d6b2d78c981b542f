"""What an ONNX model would run, and which other files it would read.

Field numbers are those of ``onnx.proto`` (ONNX 1.19). Every occurrence of a field counts: protobuf merges them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError
from repoagent_scan.formats.wire import BYTES, VARINT, Field, Fields, TooManyFieldsError

_PADDING: Final = 1 << 16
"""Zeros up to the next tensor, so that it begins at a page: at most 64 KiB of them."""
_BITS: Final = {
    **dict.fromkeys((25, 26), 2),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
}
"""Of one element, by the number of its type in ``onnx.proto``."""


Range = tuple[int, int]
"""The first byte of a tensor, and the one after its last."""


def external_range(entries: Mapping[str, str], element: int, dimensions: Iterable[int]) -> Range:
    """Where the tensor with the ``entries`` of ``external_data`` lies.

    Raises:
        MalformedError: offset or length are no numbers, or the length is not given and the type has no size.
    """
    first = _number(entries.get("offset", "0"))
    length = _number(entries.get("length", "0"))
    if not length:
        count = 1
        for dimension in dimensions:
            count *= dimension
        if element not in _BITS:
            raise MalformedError(f"external data of the type {element}, which has no size")
        length = (count * _BITS[element] + 7) // 8
    return first, first + length


def check_covered(data: Buffer, ranges: Iterable[Range]) -> None:
    """Check that ``ranges`` cover all of ``data``, but for zeros between them.

    Raises:
        MalformedError: bytes belong to no tensor, or a tensor is longer than the file.
    """
    position = 0
    for first, last in sorted(ranges):
        if last > len(data):
            raise MalformedError(f"external data of {len(data)} bytes, of which an ONNX model names {last}")
        _check_padding(data, position, first)
        position = max(position, last)
    _check_padding(data, position, len(data))


def _check_padding(data: Buffer, first: int, last: int) -> None:
    if last - first >= _PADDING or data[first : max(first, last)].strip(b"\0"):
        raise MalformedError(f"bytes {first} to {last} of external data belong to no tensor of an ONNX model")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise MalformedError(f"external data at {text[:40]!r}, expected a number")
    return int(text)


STANDARD_DOMAINS: Final = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft"}
)
"""Domains whose operators ONNX Runtime has built in."""
_LOADS_CODE: Final = frozenset({("com.microsoft", name) for name in ("EPContext", "PyOp", "PythonOp", "PythonOpGrad")})
"""Built-in operators that run code from the model or from a file: compiled blobs and Python."""

_GRAPH: Final = 7
_OPSETS: Final = 8
_DEEPEST: Final = 100
_MOST_OF_MODEL: Final = 2_000_000
"""Fields of the model itself, not of what is in it."""

# Message -> field -> message: all that leads to a node or a tensor.
_CHILDREN: Final[dict[str, dict[int, str]]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "External"},
}
_NODE_TYPE, _NODE_DOMAIN = 4, 7
_FUNCTION_NAME, _FUNCTION_DOMAIN = 1, 10
_LAST_NAME: Final = 10
_GRAPH_NODE: Final = 1
_TENSOR_DIMENSIONS, _TENSOR_TYPE, _TENSOR_LOCATION = 1, 2, 14
_EXTERNAL: Final = 1
_MOST_DIMENSIONS: Final = 1_000
_MOST_EXTERNAL: Final = 1_000_000


@dataclass(slots=True)
class OnnxContent:
    """The operators of a model and the files that it names."""

    operators: set[tuple[str, str]] = field(default_factory=set)
    """(domain, operator type) of every node, in subgraphs, functions and training graphs too."""
    functions: set[tuple[str, str]] = field(default_factory=set)
    """(domain, name) of the functions that the model brings along: made of the operators above."""
    external: dict[str, set[Range]] = field(default_factory=dict)
    """Which bytes of other files its tensors lie in. Their names are relative to the directory of the model."""

    def custom(self, allowed: frozenset[str]) -> list[str]:
        """Operators that need a library from elsewhere or load code, as ``domain::type``, sorted."""
        known = STANDARD_DOMAINS | allowed
        return sorted(
            f"{domain}::{name}"
            for domain, name in self.operators
            if f"{domain}::{name}" not in allowed
            # ONNX Runtime prefers a built-in operator to the model's function of that name.
            and ((domain, name) in _LOADS_CODE or (domain not in known and (domain, name) not in self.functions))
        )


def is_onnx(data: Buffer) -> bool:
    """Whether ``data`` reads as an ONNX model: fields of ``ModelProto`` only, with a graph and operator sets."""
    seen = set()
    try:
        for number, kind, _, _ in Fields(data, most=_MOST_OF_MODEL).of(0, len(data)):
            if not _belongs(number, kind):
                return False
            seen.add(number)
    except MalformedError:
        return False
    return {_GRAPH, _OPSETS} <= seen


def could_be_onnx(data: Buffer, *, check_cancelled: Callable[[], None] = lambda: None) -> bool:
    """Whether a reader that passes over what it does not know would find a graph with nodes in ``data``."""
    fields = Fields(data, most=_MOST_OF_MODEL, lenient=True, check_cancelled=check_cancelled)
    try:
        graphs = [found[2:] for found in fields.of(0, len(data)) if found[:2] == (_GRAPH, BYTES)]
        return sum(found[:2] == (_GRAPH_NODE, BYTES) for graph in graphs for found in fields.of(*graph)) > 0
    except TooManyFieldsError:
        return True
    except MalformedError:
        return False


def _belongs(number: int, kind: int) -> bool:
    return kind == (VARINT if number in {1, 5} else BYTES) and number in {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}


def read_onnx(data: Buffer, *, check_cancelled: Callable[[], None] = lambda: None) -> OnnxContent:
    """What ``data`` would run and read. ``check_cancelled`` is called now and then, and raises to end it.

    Raises:
        MalformedError: it is cut off, nested too deeply, or not an ONNX model.
    """
    return _Reader(data, check_cancelled).content()


@dataclass(slots=True)
class _Message:
    """A message that is being read."""

    kind: str
    fields: Iterator[Field]
    texts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where the last value lies of each field that may be a name."""
    numbers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of a tensor, the same for numbers."""
    dimensions: list[Field] = field(default_factory=list)
    external: dict[str, str] = field(default_factory=dict)

    def take(self, found: Field) -> str | None:
        """The kind of the message in the field ``found``; None if it is not one that leads to a node or a tensor."""
        number, kind, first, last = found
        if self.kind == "Tensor":
            if number == _TENSOR_DIMENSIONS:
                self.dimensions.append(found)
                if len(self.dimensions) > _MOST_DIMENSIONS:
                    raise MalformedError(f"a tensor of more than {_MOST_DIMENSIONS} dimensions")
            elif kind == VARINT:
                self.numbers[number] = (first, last)
        if kind != BYTES:
            return None
        child = _CHILDREN.get(self.kind, {}).get(number)
        if child is None and number <= _LAST_NAME:
            self.texts[number] = (first, last)
        return child


class _Reader:
    def __init__(self, data: Buffer, check_cancelled: Callable[[], None]) -> None:
        self._fields = Fields(data, check_cancelled=check_cancelled)
        self._found = OnnxContent()
        self._size = len(data)
        self._external = 0

    def content(self) -> OnnxContent:
        # Messages that are being read, the innermost last: a list of all that are to be read would outgrow the file.
        open_ = [_Message("Model", self._fields.of(0, self._size))]
        while open_:
            message = open_[-1]
            field_ = next(message.fields, None)
            if field_ is None:
                open_.pop()
                self._note(message, open_)
            elif (child := message.take(field_)) is not None:
                if len(open_) > _DEEPEST:
                    raise MalformedError(f"graphs nested more than {_DEEPEST} levels deep")
                open_.append(_Message(child, self._fields.of(*field_[2:])))
        return self._found

    def _note(self, message: _Message, outer: list[_Message]) -> None:
        texts = message.texts
        match message.kind:
            case "Node":
                self._found.operators.add((self._text(texts, _NODE_DOMAIN), self._text(texts, _NODE_TYPE)))
            case "Function":
                self._found.functions.add((self._text(texts, _FUNCTION_DOMAIN), self._text(texts, _FUNCTION_NAME)))
            case "External" if (key := self._text(texts, 1)) in ("location", "offset", "length"):
                outer[-1].external[key] = self._text(texts, 2)
            case "Tensor" if "location" in message.external:
                self._note_external(message)

    def _note_external(self, tensor: _Message) -> None:
        """A range for who looks for the file, even if no reader takes the tensor for an external one."""
        ranges = self._found.external.setdefault(tensor.external["location"], set())
        if self._number(tensor, _TENSOR_LOCATION) == _EXTERNAL:
            dimensions = (size for found in tensor.dimensions for size in self._sizes(found))
            ranges.add(external_range(tensor.external, self._number(tensor, _TENSOR_TYPE), dimensions))
        self._external += 1
        if self._external > _MOST_EXTERNAL:
            raise MalformedError(f"more than {_MOST_EXTERNAL} tensors in other files")

    def _sizes(self, found: Field) -> Iterator[int]:
        _, kind, first, last = found
        return self._fields.varints(first, last) if kind in (VARINT, BYTES) else iter(())

    def _number(self, message: _Message, number: int) -> int:
        return self._fields.varint(*message.numbers[number]) if number in message.numbers else 0

    def _text(self, texts: dict[int, tuple[int, int]], number: int) -> str:
        return self._fields.text(*texts[number]) if number in texts else ""
