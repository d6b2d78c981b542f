"""What goes into the server and comes out: parameters, buffers, messages, metrics."""

import ctypes
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json
from repoagent.server.custom_metrics import Metric as UpperMetric
from repoagent.server.custom_metrics import MetricFamily
from repoagent.server.enums import MemoryType, MetricFormat
from repoagent.serving.requests.tensor import ServerEnum

_HANDLE_SIZE: Final = 64


class ParameterType(ServerEnum):
    """The type of a parameter's value."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


def parameter_type(value: Any) -> ParameterType:
    """The type of a parameter with this value.

    Raises:
        TypeError: there is no such type.
    """
    # bool before int: True is an int for Python, and BOOL for a server.
    for kind, name in ((bool, "BOOL"), (int, "INT"), (float, "DOUBLE"), (str, "STRING"), (bytes, "BYTES")):
        if isinstance(value, kind):
            return ParameterType[name]
    raise TypeError(f"a parameter must be bytes, str, int or bool, not {type(value).__name__}")


class Parameter:
    """A name and a value: ``bytes``, ``str``, ``int`` or ``bool``.

    Raises:
        TypeError: the value is something else.
    """

    __slots__ = ("name", "type", "value")

    def __init__(self, name: str, value: bytes | str | int | bool) -> None:
        if isinstance(value, float):
            raise TypeError("a parameter must be bytes, str, int or bool, not float")
        self.name = name
        self.value = value
        self.type = parameter_type(value)


class Message:
    """A piece of JSON.

    Raises:
        InvalidArgumentError: ``json_text`` is none.
    """

    __slots__ = ("_text",)

    def __init__(self, json_text: str) -> None:
        try:
            read_json(json_text)
        except ValueError as error:
            raise InvalidArgumentError(f"failed to parse the message as JSON: {error}") from error
        self._text = json_text

    @classmethod
    def of(cls, content: Any) -> "Message":
        """The message that says ``content``."""
        return cls(json.dumps(content, separators=(",", ":")))

    def serialize_to_json(self) -> str:
        """The text."""
        return self._text


class Metrics:
    """The metrics of a server at one moment."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def formatted(self, metric_format: MetricFormat) -> str:
        """The text; there is one format."""
        return self._text


def label_texts(labels: Sequence[Parameter]) -> dict[str, str]:
    """The labels of a metric.

    Raises:
        InvalidArgumentError: one is no text.
    """
    texts: dict[str, str] = {}
    for label in labels:
        if not isinstance(label.value, str):
            raise InvalidArgumentError(f"Parameter '{label.name}' must be a string to be a label of a metric")
        texts[label.name] = label.value
    return texts


class Metric(UpperMetric):
    """A time series of ``family``, with its labels as parameters.

    Raises:
        InvalidArgumentError: a label is no text.
    """

    __slots__ = ()

    def __init__(self, family: MetricFamily, labels: Sequence[Parameter] = ()) -> None:
        super().__init__(family, label_texts(labels))


class BufferAttributes:
    """Kind, place and size of a buffer."""

    __slots__ = ("_handle", "byte_size", "memory_type", "memory_type_id")

    def __init__(self) -> None:
        self.memory_type = MemoryType.CPU
        self.memory_type_id = 0
        self.byte_size = 0
        self._handle: Any = None

    @property
    def cuda_ipc_handle(self) -> int:
        """The address of the 64 bytes of a CUDA IPC handle, which belong to this object; 0 if there is none."""
        return ctypes.addressof(self._handle) if self._handle is not None else 0

    @cuda_ipc_handle.setter
    def cuda_ipc_handle(self, address: int) -> None:
        self._handle = ctypes.create_string_buffer(ctypes.string_at(address, _HANDLE_SIZE), _HANDLE_SIZE)


class ResponseAllocator:
    """The functions of an allocator. Requests of this layer always use the server's own, in the CPU's memory."""

    __slots__ = ("alloc", "buffer_attributes", "query", "release", "start")

    def __init__(
        self,
        alloc_function: Callable[..., Any],
        release_function: Callable[..., Any],
        start_function: Callable[..., Any] | None = None,
    ) -> None:
        self.alloc = alloc_function
        self.release = release_function
        self.start = start_function
        self.buffer_attributes: Callable[..., Any] | None = None
        self.query: Callable[..., Any] | None = None

    def set_buffer_attributes_function(self, buffer_attributes_function: Callable[..., Any]) -> None:
        """Set what may change the attributes of an allocated buffer."""
        self.buffer_attributes = buffer_attributes_function

    def set_query_function(self, query_function: Callable[..., Any]) -> None:
        """Set what tells which kind of memory the allocator prefers."""
        self.query = query_function
