"""What the example backends share."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from repoagent.config.model_config_pb2 import DataType as ConfigType
from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError
from repoagent.serving.instances.backend import BackendInstance, BackendModel, InstanceSpec
from repoagent.serving.requests.request import InferRequest, InferResponse, ParameterValue
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = [
    "ExampleBackend",
    "ExampleModel",
    "Named",
    "Typed",
    "Workers",
    "expect_tensors",
    "expect_type",
    "number",
    "pause",
    "refuse_unless",
    "respond",
    "shape_text",
    "type_name",
]

_SLICE: Final = 0.01
"""Seconds after which a pause looks whether someone still waits."""


class Typed(Protocol):
    """What a configuration gives a data type."""

    data_type: Any


class Named(Typed, Protocol):
    """An input or an output in a configuration."""

    name: str


class ExampleBackend:
    """A backend without files: a version directory is enough."""

    name: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]] = ()
    default_model_filename: ClassVar[str] = ""
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str]) -> None:
        """There are no settings."""

    def gpus(self) -> Sequence[int]:
        return ()

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """Nothing: there is no file that could show it."""


class ExampleModel(BackendModel):
    """One version of a model: its instances share nothing."""

    def __init__(self, make: Callable[[InstanceSpec], BackendInstance]) -> None:
        self._make = make

    def create_instance(self, spec: InstanceSpec) -> BackendInstance:
        return self._make(spec)

    def close(self) -> None:
        """There is nothing to let go of."""


def refuse_unless(good: bool, message: str) -> None:
    """Raise InvalidArgumentError(message) unless ``good``."""
    if not good:
        raise InvalidArgumentError(message)


def number(config: "ModelConfig", key: str) -> int:
    """The parameter ``key`` of the model, a whole number of at least 0; 0 if it is not there.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = config.parameters[key].string_value if key in config.parameters else "0"
    refuse_unless(text.isascii() and text.isdigit(), f"parameter '{key}' must be a whole number, not '{text}'")
    return int(text)


def pause(seconds: float, requests: Sequence[InferRequest]) -> None:
    """Wait, but not for requests that were all cancelled."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not all(request.cancelled for request in requests):
        time.sleep(min(left, _SLICE))


def respond(
    request: InferRequest,
    version: str,
    outputs: Mapping[str, Tensor],
    parameters: Mapping[str, ParameterValue] | None = None,
    *,
    error: RepoAgentError | None = None,
    final: bool = True,
    output_start_ns: int = 0,
) -> None:
    """Send one response with those of ``outputs`` that the request wants; a request that was cancelled gets that."""
    if request.cancelled and final:
        answer_error(request, CancelledError("request cancelled"), version)
        return
    wanted = request.requested_outputs or outputs
    shown = {} if error else {name: tensor for name, tensor in outputs.items() if name in wanted}
    request.send(
        InferResponse(
            request.model_name, version, request.asked.id, shown, dict(parameters or {}), error, output_start_ns
        ),
        final,
    )


class Workers:
    """A thread for each request of a decoupled model that is still being answered."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def start(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` on a thread of its own."""
        thread = threading.Thread(target=lambda: self._run(answer), name=self._name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _run(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def close(self) -> None:
        """Wait for all of them."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()


def expect_tensors(tensors: Sequence["Named"], kind: str, names: Sequence[str]) -> None:
    """Refuse a configuration whose inputs or outputs (``kind`` says which) are not called so, in this order."""
    plural = f"{len(names)} {kind}{'s' * (len(names) != 1)}"
    refuse_unless(len(tensors) == len(names), f"expected {plural}, got {len(tensors)}")
    for place, tensor, name in zip(("first", "second", "third"), tensors, names, strict=False):
        refuse_unless(tensor.name == name, f"expected {place} {kind} tensor name to be {name}, got {tensor.name}")


def expect_type(tensor: "Named", kind: str) -> None:
    """Refuse another data type than ``kind`` (``"INT32"``)."""
    got = type_name(tensor)
    refuse_unless(got == f"TYPE_{kind}", f"expected {tensor.name} datatype to be {kind}, got {got}")


def type_name(tensor: "Typed") -> str:
    """``"TYPE_INT32"`` and so on."""
    name: str = ConfigType.Name(tensor.data_type)
    return name


def shape_text(dims: Iterable[int]) -> str:
    """``[2,-1]``, as Triton writes shapes."""
    return f"[{','.join(map(str, dims))}]"
