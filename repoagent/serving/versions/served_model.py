"""One version of a model that serves: its checks, its gate, its scheduler, its numbers."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.instances.backend import BackendModel
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.requests.request import (
    NO_LABELS,
    InferRequest,
    InferResponse,
    Labels,
    OutputClasses,
    RequestTrace,
)
from repoagent.serving.requests.request_checker import RequestChecker
from repoagent.serving.requests.senders import ReceiptSender, TracingSender, TrackedSender, answer_error
from repoagent.serving.requests.tensor import model_metadata
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.instance_set import InstanceChange, InstanceSet

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.serving.versions.reuse import Share
    from repoagent.storage.files.files import ModelFiles


class Gate:
    """A door with a counter. Once shut, no request enters; those inside can be waited for.

    Every request goes in and out, on any thread, so neither takes a lock: the counter is the length of a list, which
    changes in one step. A request is counted first and looks at the door then, so none is inside unnoticed.
    """

    def __init__(self) -> None:
        self._empty = threading.Condition()
        self._inside: list[None] = []
        self._shut = False

    @property
    def inside(self) -> int:
        """How many are inside at the moment."""
        return len(self._inside)

    def enter(self) -> bool:
        """Go in; False if the gate is shut. Every True needs one :meth:`leave`."""
        self._inside.append(None)
        if self._shut:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Go out again, from any thread."""
        self._inside.pop()
        if self._shut:
            with self._empty:
                self._empty.notify_all()

    def shut(self) -> None:
        """Let no request in any more. Doing it twice changes nothing."""
        self._shut = True

    def wait_empty(self, timeout: float | None) -> bool:
        """Wait until the last one has left; False if ``timeout`` seconds were not enough."""
        with self._empty:
            return self._empty.wait_for(lambda: not self._inside, timeout)


class _NoModel(BackendModel):
    """Of a version that no backend executes."""

    def close(self) -> None:
        pass


_SERIALS: Final = itertools.count(1)


class RetiredError(RepoAgentError):
    """This version takes no requests any more; look the model up again, another may have taken its place."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What an ensemble was made of when it was checked."""

    members: tuple[int, ...]
    """The serial numbers of the members, step by step."""
    labels: Labels
    """Those of its own, not of its members."""


class ServedModel:
    """A loaded version. Requests come through :meth:`infer` and :meth:`submit`, from any thread.

    ``backend_model`` is closed with it; None for a version that no backend executes (an ensemble).
    """

    def __init__(
        self,
        context: VersionContext,
        *,
        backend_model: BackendModel | None,
        scheduler: Scheduler,
        keeps_files: bool = False,
        labels: Labels = NO_LABELS,
        composition: Composition | None = None,
        instances: InstanceSet | None = None,
    ) -> None:
        self.serial = next(_SERIALS)
        """No other loaded version of this process has the same."""
        self.composition = composition
        """Of an ensemble: what it was made of."""
        self.name = context.name
        self.version = context.version
        self.config = context.config
        self.statistics = context.statistics
        self.decoupled = context.decoupled
        self.keeps_files = keeps_files
        """Whether the backend goes on reading the model's files while it serves."""
        self.classes = OutputClasses(context.batching, labels)
        """Given to every request that this version takes."""
        self.share: Share | None = None
        """What it was made of, if that is known: a reload keeps it while that is the same."""
        self._named_receipt = ""
        self._instances = instances
        self._backend_model = backend_model or _NoModel()
        self._scheduler = scheduler
        checker = RequestChecker(context.name, context.config)
        self._check: Final = checker.check
        """Refuses requests that do not fit the model; see :meth:`RequestChecker.check`."""
        self._size_if_valid = checker.size_if_valid
        self._gate = Gate()
        self._enter = self._gate.enter
        self._leave = self._gate.leave
        self._infer = scheduler.infer
        self.executes_here: Final = (lambda _patient: False) if self.decoupled else scheduler.executes_here
        """Whether :meth:`infer` serves a caller better than :meth:`submit`: :meth:`Scheduler.executes_here`."""

    def show_receipt(self, receipt: str, *, in_answers: bool) -> None:
        """Traces of requests name the digest ``receipt``, and answers, if they shall. Before the version serves."""
        self.classes = replace(self.classes, receipt=receipt)
        self._named_receipt = receipt if in_answers else ""

    def keep_receipt(self, old: "ServedModel") -> None:
        """The load that made ``old`` made this one, too."""
        self.show_receipt(old.classes.receipt, in_answers=bool(old._named_receipt))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Its metadata, without versions: nothing changes them."""
        return model_metadata(self.name, self.config, ())

    @property
    def running(self) -> int:
        """How many requests are waiting or being executed."""
        return self._gate.inside

    @property
    def last_used_ms(self) -> int:
        """When its last request ended, by the clock on the wall; 0 if it had none."""
        return self.statistics.last_inference_ms

    @property
    def waiting(self) -> int:
        """How many requests wait in the scheduler's queue."""
        return self._scheduler.waiting

    @property
    def ready(self) -> bool:
        """Whether what executes it is there: an instance that has broken down may be on its way back, or not."""
        return self._backend_model.ready

    @property
    def asks(self) -> bool:
        """Whether :meth:`check_ready` runs code of the model's own, which may take its time."""
        return self._backend_model.asks

    def check_ready(self) -> bool:
        """Whether the model's own code, if it has any for that, returns that it is ready."""
        return self._backend_model.check_ready()

    @property
    def broken(self) -> bool:
        """Whether only another load brings all of it back."""
        return self._backend_model.broken

    def infer(self, request: InferRequest) -> InferResponse:
        """Check and execute ``request``, on this thread where the scheduler allows it; its sender is not used.

        Raises:
            RetiredError: the version is being unloaded; nothing was done.
            RepoAgentError: the request does not fit the model, or it failed.
        """
        request.arrival_ns = time.monotonic_ns()
        request.classes = self.classes
        if self.decoupled:
            raise InvalidArgumentError(
                f"model '{self.name}' is decoupled and may send any number of responses: "
                "use 'infer' of a Model, or 'submit'"
            )
        if self._size_if_valid(request) is None:
            self._check(request)
        if not self._enter():
            raise RetiredError(self.name)
        try:
            trace = request.trace
            response = self._infer(request) if trace is None else self._infer_traced(request, trace)
            if self._named_receipt:
                response.receipt = self._named_receipt
            return response
        finally:
            self._leave()

    def _infer_traced(self, request: InferRequest, trace: RequestTrace) -> InferResponse:
        request.times = None
        trace.begin(request, self.version, request.arrival_ns)
        try:
            response = self._scheduler.infer(request)
            trace.answer(response)
            return response
        except RepoAgentError as error:
            trace.answer(InferResponse(self.name, str(self.version), request.asked.id, error=error))
            raise
        finally:
            request.trace = None
            trace.end(request, time.monotonic_ns())

    def check(self, request: InferRequest) -> None:
        """Refuse ``request`` if it would be refused before its execution.

        Raises:
            InvalidArgumentError: it does not fit the model.
            UnsupportedError: the model is decoupled, and the request refuses such.
        """
        self._check_decoupled(request)
        self._check(request)

    def _check_decoupled(self, request: InferRequest) -> None:
        if self.decoupled and request.refuses_decoupled:
            raise UnsupportedError(request.refuses_decoupled)

    def submit(self, request: InferRequest) -> None:
        """Check and queue ``request``; whatever happens to it, its sender hears. Only if the version is being unloaded,
        nothing is done, and ``RetiredError`` is raised."""
        request.arrival_ns = time.monotonic_ns()
        request.classes = self.classes
        try:
            self._check_decoupled(request)
            if self._size_if_valid(request) is None:
                self._check(request)
        except RepoAgentError as error:
            answer_error(request, error, str(self.version))
            return
        if not self._enter():
            raise RetiredError(self.name)
        if request.trace is not None:
            request.times = None
            request.trace.begin(request, self.version, request.arrival_ns)
            TracingSender(request, request.trace)
        if self._named_receipt:
            ReceiptSender(request, self._named_receipt)
        TrackedSender(request, self._leave)
        self._scheduler.submit(request)

    def prepare(self, config: "ModelConfig", cancelled: Callable[[], bool] = lambda: False) -> InstanceChange | None:
        """Make the instances that a complete ``config`` asks for beside those that there are.

        None if the number of instances cannot be changed while it serves. Raises what making an instance does.
        """
        if self._instances is None:
            return None
        change = self._instances.prepare(config, cancelled)
        if change.empty or self._scheduler.resizable:
            return change
        change.discard()
        return None

    @property
    def refreshable(self) -> Sequence[str]:
        """Folders that :meth:`refresh` takes up while it serves; none where answers of before may be kept."""
        return () if self.config.response_cache.enable else self._backend_model.refreshable

    def refresh(self, config: "ModelConfig", files: "ModelFiles") -> Callable[[], None]:
        """Read those folders again. Nothing changes before what is returned is called. Raises as the backend does."""
        take = self._backend_model.refresh(config, files, self.version)

        def take_as_another() -> None:
            take()
            self.serial = next(_SERIALS)  # What ensembles have kept of its answers is of the one before.

        return take_as_another

    def change(self, config: "ModelConfig", change: InstanceChange) -> None:
        """Go by ``config``, which asks for nothing else than before but for other instances: those of ``change``.

        Requests go on. What is to go goes when its execution has ended.
        """
        self.config = config
        if self._instances is not None and not change.empty:
            self._scheduler.resize(list(change.added.values()), self._instances.apply(change))

    def retire(self) -> None:
        """Take no new requests; those inside go on."""
        self._gate.shut()
        self._scheduler.retire()

    def drain(self, timeout: float | None) -> bool:
        """Wait until every request has been answered; False if ``timeout`` seconds were not enough."""
        return self._gate.wait_empty(timeout)

    def close(self) -> None:
        """Stop the scheduler and let go of the model. Requests that still wait are answered with an error."""
        self._gate.shut()
        self._scheduler.close()
        self._backend_model.close()

    def statistics_dict(self) -> dict[str, Any]:
        """This version's entry of Triton's statistics JSON."""
        return self.statistics.to_dict(self.name, self.version)
