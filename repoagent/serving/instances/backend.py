"""What executes a model. A backend is chosen by the configuration's ``backend`` (or ``platform``) and found by name."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from repoagent.errors import RepoAgentError
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest, OutputPlace
from repoagent.serving.requests.tensor import Array, Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.storage.files.files import ModelFiles


class Capability(enum.Flag):
    """What a runner or an instance can do besides its plain form; it states that in its ``capabilities``."""

    NONE = 0
    PLACES_OUTPUTS = enum.auto()
    """A runner whose :meth:`BatchRunner.run_into` makes outputs in memory of the caller's."""
    OVERLAPS = enum.auto()
    """Runs have two halves: the next one may begin while a device still computes the one before."""
    ONLY_COMPUTES = enum.auto()
    """A run computes on the thread that calls it, from its beginning to its end. Others may help, but it waits for no
    device and for no one else, so that the thread's processor time states how long it takes."""
    ENDS_RUNS = enum.auto()
    """Another thread can end a run, by :meth:`BatchRunner.end_run`."""
    MAY_RUN_FOREVER = enum.auto()
    """What a request holds may make a run take any time, however quick those before it were."""
    ANSWERS_LATER = enum.auto()
    """``execute`` may return before its requests are answered, and then takes others."""
    TAKES_SEVERAL = enum.auto()
    """It takes several requests at once and executes one after the other: no wake-up for each."""
    CLOSES_SLOWLY = enum.auto()
    """``close`` waits for something outside, such as a process; others may be closed at the same time."""
    USES_SENDERS = enum.auto()
    """Answers go through senders, whether or not the caller waits."""
    STAGED = enum.auto()
    """Executions have three stages, of which only the second needs the instance for itself."""
    RATE_LIMITED = enum.auto()
    """An execution waits for resources of the rate limiter."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One execution instance of a model, as its instance groups define it."""

    name: str
    kind: str
    """``"CPU"``, ``"GPU"`` or ``"MODEL"``."""
    device_id: int = 0
    profiles: tuple[str, ...] = ()
    """The optimisation profiles that the group names: indices of a TensorRT plan's. Empty: the backend decides."""


class BackendInstance:
    """What runs requests: a base class for instances that answer through senders.

    The core never calls one instance from two threads at once.
    """

    capabilities = Capability.NONE

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Answer every request through its sender, exactly one final response each, errors included."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; no request is running."""
        raise NotImplementedError

    # -- with Capability.TAKES_SEVERAL ------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """How many it is worth giving it at the moment; 1 where it had better get one at a time."""
        return 1

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
        raise NotImplementedError

    @property
    def ready_for_loop(self) -> bool:
        """Whether :meth:`begin_each` would probably do what it is asked to."""
        return False

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
        return False


class BatchRunner:
    """The simple form of an instance: tensors in, tensors out. A base class; :class:`RunnerInstance` drives it."""

    capabilities = Capability.NONE

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        """Run one batch and return the outputs named (all of them for an empty list).

        They may be looked at while the next run goes on, which must leave them alone.

        Raises:
            RepoAgentError: the whole batch failed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; no run goes on."""
        raise NotImplementedError

    def run_into(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str], places: Mapping[str, OutputPlace]
    ) -> dict[str, Tensor]:
        """As :meth:`run`; an output that has a place may be made there, and its array then lies there.

        Raises:
            RepoAgentError: the whole batch failed.
        """
        return self.run(inputs, outputs)

    # -- with Capability.OVERLAPS; at most two runs have begun and not finished ----------------------------------------

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
        raise NotImplementedError

    def finish(self, begun: Any) -> dict[str, Tensor]:
        """Wait for a run. What it returns, and raises, is as :meth:`run` has it."""
        raise NotImplementedError

    # -- with Capability.ENDS_RUNS ---------------------------------------------------------------------------------

    def end_run(self, error: RepoAgentError) -> None:
        """Have the run that goes on, or begins next, raise ``error`` soon, unless it is just ending."""

    def renew(self) -> None:
        """After :meth:`end_run` and the end of that run: the next one is to come to its end."""


class BackendModel:
    """One loaded version of a model: the weights that its instances share. A base class."""

    keeps_files_open: bool | None = None
    """Whether it reads files while it serves; None: as its backend states."""
    refreshable: Sequence[str] = ()
    """Folders of a version whose files :meth:`refresh` can take up while it serves. When nothing else has changed, a
    load does that instead of making a new model."""

    def refresh(self, config: "ModelConfig", files: "ModelFiles", version: int) -> Callable[[], None]:
        """Read these folders again. Nothing changes before what is returned is called, which must not raise.

        Raises:
            RepoAgentError: the files make no sense.
        """
        raise NotImplementedError

    def create_instance(self, spec: InstanceSpec) -> BackendInstance | BatchRunner:
        """A new instance; the version closes it."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; the instances are closed."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether any instance can execute at the moment: instances may break down, and recover."""
        return True

    @property
    def broken(self) -> bool:
        """Whether an instance has broken down for good: only another load brings it back."""
        return False

    @property
    def asks(self) -> bool:
        """Whether :meth:`check_ready` calls code of the model's own, which may take its time."""
        return False

    def check_ready(self) -> bool:
        """What that code returns."""
        return True


class Backend(Protocol):
    """A kind of model. One object per server and name.

    A backend whose models call other models has a method ``bind(core)`` too; it is called before any other, with an
    object that has ``submit``, ``load``, ``unload`` and ``model_ready`` of the serving core. One whose models share
    work between requests has ``stateful = True`` too: a server of several processes then has a model in one of them.
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

    def auto_complete(self, config: "ModelConfig", files: "ModelFiles", version: int) -> None:
        """Fill in what ``config`` leaves open and the files contain (inputs, outputs, max_batch_size).

        Raises:
            InvalidArgumentError: the files contradict the configuration.
        """

    def load(self, config: "ModelConfig", files: "ModelFiles", version: int) -> BackendModel:
        """Load one version. ``config`` is complete and checked."""
