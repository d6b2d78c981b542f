"""Responses of the Server API."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.server.memory import DeviceOrMemoryType
from repoagent.server.tensor import Tensor, from_core
from repoagent.serving.requests.request import InferResponse, ParameterValue

if TYPE_CHECKING:
    from repoagent.server.model import Model
    from repoagent.server.request import InferenceRequest

__all__ = ["InferenceResponse", "error_response", "make_response"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class InferenceResponse:
    """One answer of a model: outputs, or an error."""

    model: "Model"
    """The model and the version that answered."""
    request_id: str | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: RepoAgentError | None = None
    classification_label: str | None = None
    final: bool = False
    """Nothing comes after this one."""


def make_response(request: "InferenceRequest", response: InferResponse | None, final: bool) -> InferenceResponse:
    """The core's ``response`` to ``request``; None is the empty end of a decoupled answer. Never raises."""
    if response is None:
        return InferenceResponse(request.model, request.request_id, final=final)
    made = InferenceResponse(
        request.model.answering(response.model_version),
        response.id or None,
        response.parameters,
        {name: from_core(tensor) for name, tensor in response.outputs.items()},
        response.error,
        None,
        final,
    )
    if request.output_memory_type is not None:
        _move(made, request.output_memory_type)
    return made


def error_response(request: "InferenceRequest", error: RepoAgentError) -> InferenceResponse:
    """The final response to a request that failed."""
    return InferenceResponse(request.model, request.request_id, error=error, final=True)


def _move(response: InferenceResponse, device: DeviceOrMemoryType) -> None:
    try:
        response.outputs = {name: tensor.to_device(device) for name, tensor in response.outputs.items()}
    except RepoAgentError as error:
        response.error = InvalidArgumentError(f"Memory type {device} not supported: {error}")
