"""What executes a model. A backend is chosen by the configuration's ``backend`` (or ``platform``) and found by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from repoagent.errors import RepoAgentError
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest, OutputPlace
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = [
    "AskingModel",
    "Backend",
    "BackendInstance",
    "BackendModel",
    "BatchRunner",
    "ComputingRunner",
    "DeferringInstance",
    "EndableRunner",
    "FragileModel",
    "InstanceSpec",
    "Lingering",
    "PlacingRunner",
    "QueueingInstance",
    "StagedRunner",
]


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One execution instance of a model, as its instance groups say."""

    name: str
    kind: str
    """``"CPU"``, ``"GPU"`` or ``"MODEL"``."""
    device_id: int = 0
    profiles: tuple[str, ...] = ()
    """The optimisation profiles that the group names: indices of a TensorRT plan's. Empty: the backend decides."""


class BackendInstance(Protocol):
    """What runs requests. The core never calls one instance from two threads at once."""

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Answer every request through its sender, exactly one final response each, errors included."""

    def close(self) -> None:
        """Let go of everything; no request is running."""


@runtime_checkable
class BatchRunner(Protocol):
    """The simple form of an instance: tensors in, tensors out. One adapter makes it look like a BackendInstance."""

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        """Run one batch and return the outputs named (all of them for an empty list).

        They may be looked at while the next run goes on, which must leave them alone.

        Raises:
            RepoAgentError: the whole batch failed.
        """

    def close(self) -> None: ...


@runtime_checkable
class PlacingRunner(BatchRunner, Protocol):
    """A runner that can make outputs in memory of the caller's."""

    def run_into(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str], places: Mapping[str, OutputPlace]
    ) -> dict[str, Tensor]:
        """As :meth:`run`; an output that has a place may be made there, and its array then lies there.

        Raises:
            RepoAgentError: the whole batch failed.
        """


@runtime_checkable
class StagedRunner(BatchRunner, Protocol):
    """A runner whose runs have two halves: the next one may begin while a device still computes the one before."""

    @property
    def depth(self) -> int:
        """How many runs may have begun and not finished. With one, only :meth:`run` is used."""

    def begin(self, inputs: Mapping[str, Sequence[Array]], outputs: Sequence[str]) -> Any:
        """Begin a run, and return without waiting for it.

        Args:
            inputs: Each input in parts, which are joined along the first dimension. They are not read afterwards.
            outputs: As for :meth:`run`.

        Returns:
            What :meth:`finish` wants, exactly once, in the order in which runs have begun.

        Raises:
            RepoAgentError: the whole batch failed; nothing has begun.
        """

    def finish(self, begun: Any) -> dict[str, Tensor]:
        """Wait for a run. What it returns, and raises, is as :meth:`run` has it."""


@runtime_checkable
class ComputingRunner(BatchRunner, Protocol):
    """A runner that says whether its runs do nothing but compute."""

    @property
    def only_computes(self) -> bool:
        """A run computes on the thread that calls it, from its beginning to its end. Others may help, but it waits for
        no device and for no one else, so that the thread's processor time says how long it takes."""


@runtime_checkable
class EndableRunner(BatchRunner, Protocol):
    """A runner whose run can be ended by another thread."""

    @property
    def may_go_on_for_ever(self) -> bool:
        """Whether what a request holds may make a run take any time, however quick those before it were."""

    def end_run(self, error: RepoAgentError) -> None:
        """Have the run that goes on, or begins next, raise ``error`` soon, unless it is just ending."""

    def renew(self) -> None:
        """After :meth:`end_run` and the end of that run: the next one is to come to its end."""


@runtime_checkable
class DeferringInstance(BackendInstance, Protocol):
    """An instance whose ``execute`` may return before its requests are answered, and then takes others."""

    @property
    def defers(self) -> bool:
        """Whether it does so."""


@runtime_checkable
class Lingering(Protocol):
    """An instance that knows whether its ``close`` waits for something outside, such as a process."""

    @property
    def lingers(self) -> bool:
        """Whether it does so: then others may be closed at the same time."""


@runtime_checkable
class QueueingInstance(BackendInstance, Protocol):
    """An instance that is given several requests at once and executes one after the other: it need not be woken up
    for each."""

    @property
    def ahead(self) -> int:
        """How many it is worth giving it at the moment; 1 where it had better get one at a time."""

    def execute_each(
        self,
        requests: Sequence[InferRequest],
        executed: Callable[[int, int, int], None],
        returned: Callable[[Sequence[int]], None],
    ) -> None:
        """Answer every request through its sender, or give it back.

        ``executed`` is called before a request is answered that was executed, with its place in ``requests`` and the
        moments (``time.monotonic_ns``) when its execution began and ended; ``returned``, from any thread, with the
        places of those that were not begun and are not going to be.
        """

    @property
    def ready_for_loop(self) -> bool:
        """Whether :meth:`begin_each` would probably do what it is asked to."""

    def begin_each(
        self,
        requests: Sequence[InferRequest],
        executed: Callable[[int, int, int], None],
        returned: Callable[[Sequence[int]], None],
        over: Callable[[Exception | None], None],
        reader: LoopReader,
    ) -> bool:
        """As :meth:`execute_each` without waiting, on the thread of ``reader``, which reads the answers.

        ``over`` is called, on any thread, when the instance can be given others, with what :meth:`execute_each` would
        have raised. False if nothing was done: then it is not called.
        """


class BackendModel(Protocol):
    """One loaded version of a model: the weights that its instances share."""

    def create_instance(self, spec: InstanceSpec) -> BackendInstance | BatchRunner: ...

    def close(self) -> None: ...


@runtime_checkable
class FrugalModel(BackendModel, Protocol):
    """A model that decides itself what ``keeps_files_open`` of its backend decides for others."""

    @property
    def keeps_files_open(self) -> bool:
        """Whether it reads files while it serves."""


@runtime_checkable
class FragileModel(BackendModel, Protocol):
    """A model whose instances may break down while it is loaded, and recover."""

    @property
    def ready(self) -> bool:
        """Whether any instance can execute at the moment."""

    @property
    def broken(self) -> bool:
        """Whether an instance has broken down for good: only another load brings it back."""


@runtime_checkable
class AskingModel(BackendModel, Protocol):
    """A model with code of its own that says whether it is ready."""

    @property
    def asks(self) -> bool:
        """Whether :meth:`says_ready` asks anybody, which may take its time."""

    def says_ready(self) -> bool:
        """What that code says."""


class Backend(Protocol):
    """A kind of model. One object per server and name.

    A backend whose models call other models has a method ``bind(core)`` too; it is called before any other, with an
    object that has ``submit``, ``load``, ``unload`` and ``model_ready`` of the serving core.
    """

    name: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]]
    """Values of ``platform`` that mean this backend, such as ``onnxruntime_onnx``."""
    default_model_filename: ClassVar[str]
    keeps_files_open: ClassVar[bool]
    """True if files are read after ``load`` has returned; a confidential plaintext then stays until unload."""

    def gpus(self) -> Sequence[int]:
        """The devices that its instances may use; empty if it runs on the CPU. This decides what KIND_AUTO means.

        Raises:
            UnsupportedError: no model of this backend can run on this machine.
        """

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """Fill in what ``config`` leaves open and the files contain (inputs, outputs, max_batch_size).

        Raises:
            InvalidArgumentError: the files contradict the configuration.
        """

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> BackendModel:
        """Load one version. ``config`` is complete and checked."""
