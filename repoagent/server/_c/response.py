"""Responses of the lower layer."""

from typing import Any

from repoagent.errors import InvalidArgumentError
from repoagent.server._c.messages import parameter_type
from repoagent.server.enums import DataType, MemoryType, ParameterType
from repoagent.server.tensor import Tensor, from_core
from repoagent.serving.requests.class_labels import OutputClasses
from repoagent.serving.requests.request import InferResponse

__all__ = ["InferenceResponse"]


class InferenceResponse:
    """One answer. The buffers of its outputs live as long as it does."""

    __slots__ = ("__weakref__", "_classes", "_error", "_held", "_outputs", "_parameters", "id", "model")

    def __init__(self, response: InferResponse, held: object = None, classes: OutputClasses | None = None) -> None:
        """``held`` lives as long as the response; ``classes`` has the labels of its outputs."""
        self._classes = classes
        self._error = response.error
        self._outputs: list[tuple[str, Tensor]] = [(name, from_core(it)) for name, it in response.outputs.items()]
        self._parameters = list(response.parameters.items())
        self._held = held
        self.id = response.id
        self.model = (response.model_name, int(response.model_version or -1))

    def throw_if_response_error(self) -> None:
        """Raise the error that this response is.

        Raises:
            RepoAgentError: it is one.
        """
        if self._error is not None:
            raise self._error

    @property
    def parameter_count(self) -> int:
        """How many parameters the model sent."""
        return len(self._parameters)

    @property
    def output_count(self) -> int:
        """How many outputs there are."""
        return len(self._outputs)

    def parameter(self, index: int) -> tuple[str, ParameterType, Any]:
        """Name, type and value of a parameter.

        Raises:
            InvalidArgumentError: there is none at ``index``.
        """
        name, value = _at(self._parameters, index, "parameter")
        return name, parameter_type(value), value

    def output(self, index: int) -> tuple[str, DataType, tuple[int, ...], int, int, MemoryType, int]:
        """Name, data type, shape, address, size in bytes, kind of memory and number of its device of an output.

        Raises:
            InvalidArgumentError: there is none at ``index``.
        """
        name, tensor = _at(self._outputs, index, "output")
        return (
            name,
            tensor.data_type,
            tuple(tensor.shape),
            tensor.data_ptr,
            tensor.size,
            tensor.memory_type,
            tensor.memory_type_id,
        )

    def output_classification_label(self, index: int, class_index: int) -> str:
        """The label of a class of an output, from its ``label_filename``; empty if it has none.

        Raises:
            InvalidArgumentError: there is no output at ``index``.
        """
        name, _ = _at(self._outputs, index, "output")
        return self._classes.label(name, class_index).decode(errors="surrogateescape") if self._classes else ""


def _at(items: list[tuple[str, Any]], index: int, what: str) -> tuple[str, Any]:
    if not 0 <= index < len(items):
        raise InvalidArgumentError(f"out of bounds index {index}: the response has {len(items)} {what}s")
    return items[index]
