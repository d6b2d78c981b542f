"""Responses as a ``model.py`` makes and sees them, to and from those of the core."""

import json
from collections.abc import Mapping, Sequence, Set
from typing import Final

from repoagent.serving.backends.python.model.errors import TritonError, TritonModelException, core_error
from repoagent.serving.backends.python.model.tensors import Tensor
from repoagent.serving.requests.request import InferRequest, InferResponse, ParameterValue

__all__ = ["InferenceResponse", "checked_parameters", "checked_tensors", "received", "response_of"]

_INT64: Final = 1 << 63


class InferenceResponse:
    """One answer: tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self._tensors = checked_tensors(output_tensors, "output_tensors")
        self._error: TritonError | None = None
        if error is not None:
            self.set_error(error)
        self._parameters = {} if parameters is None else checked_parameters(parameters)

    @classmethod
    def wrap(
        cls, tensors: list[Tensor], error: TritonError | None, parameters: dict[str, ParameterValue]
    ) -> "InferenceResponse":
        """What another model answered, whatever its parameters are; not part of Triton's interface."""
        response = cls(tensors, error)
        response._parameters = parameters
        return response

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def set_error(self, error: TritonError | None) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError or None, not {type(error).__name__}")
        self._error = error

    def parameters(self) -> str:
        """The response's parameters as JSON text."""
        return json.dumps(self._parameters, separators=(",", ":"))


def checked_tensors(given: Sequence[Tensor], what: str) -> list[Tensor]:
    """A list of tensors that a model gives as ``what``.

    Raises:
        TypeError: it has something else.
        TritonModelException: one of them is None.
    """
    if not isinstance(given, Sequence | Set):
        raise TypeError(f"{what} must be a list of pb_utils.Tensor, found {type(given).__name__}")
    for item in given:
        if item is None:
            raise TritonModelException(f"a tensor in {what} should not be empty: it is None")
        if not isinstance(item, Tensor):
            raise TypeError(f"{what} must be a list of pb_utils.Tensor, found {type(item).__name__}")
    return list(given)


def checked_parameters(parameters: Mapping[str, ParameterValue] | None) -> dict[str, ParameterValue]:
    """The parameters that a model gives; what clients and other kinds of models give may have floats besides.

    Raises:
        TritonModelException: they are no mapping, or a name or a value is of another type.
    """
    if not isinstance(parameters, Mapping | None):
        raise TritonModelException(f"Expect a dict of parameters, got {type(parameters)}")
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise TritonModelException(f"parameter '{name}' has a number that does not fit into 64 bits")
    return dict(parameters or {})


def received(response: InferResponse | None) -> InferenceResponse:
    """A response of another model; the empty end of its responses is one without tensors."""
    if response is None:
        return InferenceResponse()
    error = TritonError(response.error.message, response.error.code) if response.error is not None else None
    tensors = [Tensor.wrap(name, tensor) for name, tensor in response.outputs.items()]
    return InferenceResponse.wrap(tensors, error, response.parameters)


def response_of(
    request: InferRequest, version: str, response: InferenceResponse, wanted: Sequence[str] = ()
) -> InferResponse:
    """The core's form of what a model answered; only the outputs that are ``wanted``, or all if none is named."""
    answer = InferResponse(request.model_name, version, id=request.asked.id, parameters=response._parameters)
    if response._error is not None:
        answer.error = core_error(response._error)
        return answer
    for tensor in response._tensors:
        name = tensor.name()
        if not wanted or name in wanted:
            answer.outputs[name] = tensor.unwrap()
    return answer
