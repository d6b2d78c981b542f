"""Where requests come in while the server is READY: each is traced if it is chosen, and goes to its model."""

import enum
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Final

from repoagent.api.report import LoadReport
from repoagent.errors import NotFoundError, RepoAgentError, UnavailableError
from repoagent.serving.lifecycle.load_attempt import LoadRequest
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.tracing.tracer import Tracer
from repoagent.serving.versions.served_model import RetiredError, ServedModel


class ServerState(enum.Enum):
    """The life of a core, in this order."""

    INITIALIZED = "initialized"
    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"
    STOPPED = "stopped"
    LEFT_BEHIND = "in the process that this one was forked from"
    """A forked child has a copy of the core and none of its threads: it cannot use it, nor may it unload anything."""


class ServerLife:
    """The state of one server. ``state`` may be read from any thread, and is changed by the methods only."""

    def __init__(self) -> None:
        self.state = ServerState.INITIALIZED
        self._lock = threading.Lock()
        _lives.add(self)

    def enter(self, state: ServerState, expected: ServerState) -> None:
        """Go on to ``state``; raises ``UnavailableError`` if the present one is not ``expected``."""
        with self._lock:
            if self.state is not expected:
                raise UnavailableError(f"the server cannot become {state.value}: it is {self.state.value}")
            self.state = state

    def begin_exit(self) -> bool:
        """Go on to EXITING from wherever it is; False if that was done before."""
        with self._lock:
            if self.state in (ServerState.EXITING, ServerState.STOPPED, ServerState.LEFT_BEHIND):
                return False
            self.state = ServerState.EXITING
            return True

    def end(self) -> None:
        """Everything is unloaded, or the time for it is over."""
        with self._lock:
            self.state = ServerState.STOPPED

    def not_ready(self) -> UnavailableError:
        """The error of calls that need a server that is READY."""
        return UnavailableError(f"Server not ready: it is {self.state.value}")

    def leave_behind(self) -> None:
        """This is a forked child. Only one that was never started can be used here."""
        self._lock = threading.Lock()
        if self.state is not ServerState.INITIALIZED:
            self.state = ServerState.LEFT_BEHIND


_lives: Final[weakref.WeakSet[ServerLife]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for life in list(_lives):
        life.leave_behind()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Router:
    """See :class:`~repoagent.serving.versions.ensemble_builder.Members`.

    Requests are taken also while the server stops: those that it had taken before are to be finished.
    """

    def __init__(self, table: ModelTable, repositories: RepositorySet) -> None:
        self._table = table
        self._repositories = repositories

    def choose(self, name: str, namespace: str) -> str | None:
        """The namespace of the model that an ensemble of ``namespace`` means by ``name``: its own if there is one.

        None if no repository has one and none is loaded, or several that are not the ensemble's neighbours.
        """
        if not self._repositories.namespacing:
            return ""
        loaded = [slot.id for slot in self._table.named(name) if slot.loaded is not None]
        listed = {model.namespace for model in self._repositories.ids(name)}
        # One that is loaded and has left its repository gives way to the one that is there, perhaps the same, moved.
        found = listed | {model.namespace for model in loaded if not listed or not model.namespace}
        if namespace in found:
            return namespace
        return found.pop() if len(found) == 1 else None

    def load_needed(self, name: str) -> Future[LoadReport]:
        """Queue a load of a model that another one needs; raises ``UnavailableError`` if the server is stopping."""
        future = self._table.load(name, LoadRequest(needed=True))
        future.add_done_callback(lambda _: self._table.forget_if_empty(name))
        return future

    def find(self, name: str, version: str) -> ServedModel:
        return self._table.find(name, version)

    def submit(self, request: InferRequest) -> None:
        """Hand ``request`` to its model; never raises."""
        try:
            while not self._submitted(request):
                pass
        except RepoAgentError as error:
            answer_error(request, error)

    def _submitted(self, request: InferRequest) -> bool:
        """False if the model was replaced between the look and the call: the next look finds its successor."""
        served = self._table.find(request.asked.model_name, request.asked.model_version)
        try:
            request.model_name = served.name
            served.submit(request)
        except RetiredError:
            return False
        return True


_READY: Final = ServerState.READY


class Reception:
    """Takes the requests of a server as long as it is READY. Every method may be called from any thread."""

    def __init__(self, table: ModelTable, demand: OnDemand, tracer: Tracer, life: ServerLife) -> None:
        self._table = table
        self._demand = demand
        self.tracer = tracer
        """Chooses the requests that are traced; its settings can be changed at any time."""
        self._life = life

    def infer(self, request: InferRequest) -> InferResponse:
        """Execute ``request`` and return its answer, on this thread where the model's scheduler allows it.

        The sender of the request is not used. For a decoupled model use :meth:`submit`.

        Raises:
            NotFoundError: there is no such model or version.
            InvalidArgumentError: the request does not fit the model.
            UnavailableError: the model or the server is not ready, or the request's timeout expired.
            CancelledError: the request was cancelled before its execution.
            RepoAgentError: the model failed.
        """
        if self.tracer.enabled:
            self._trace(request)
        while self._life.state is _READY:
            served = self._find(request)
            if served is None:
                self._demand.load(request.model_name, request.asker)
                continue
            try:
                return served.infer(request)
            except RetiredError:
                continue  # It was replaced between the look and the call: the next look finds its successor.
        raise self._life.not_ready()

    def infer_here(self, request: InferRequest, patient: bool) -> InferResponse | None:
        """As :meth:`infer`, if its caller is better served by that than by :meth:`submit`; else None: nothing was done.

        ``patient``: the caller would do nothing before it has the answer. See :meth:`Scheduler.executes_here`. A
        request that would have its model loaded first is not executed.
        """
        if self._life.state is not _READY:
            raise self._life.not_ready()
        served = self._find(request)
        if served is None or not served.executes_here(patient):
            return None
        if self.tracer.enabled:
            self._trace(request)
        try:
            return served.infer(request)
        except RetiredError:
            return self.infer(request)

    def submit(self, request: InferRequest) -> None:
        """Take ``request`` over and return soon; never raises. Its sender gets all answers, errors too.

        The sender may be called before this returns: at once when the request is refused, and when the model is so
        quick that waking a thread would take longer.
        """
        if self.tracer.enabled:
            self._trace(request)
        try:
            while self._life.state is _READY:
                served = self._find(request)
                if served is None:
                    return self._demand.submit(request, self.submit)
                try:
                    return served.submit(request)
                except RetiredError:
                    continue
            raise self._life.not_ready()
        except RepoAgentError as error:
            answer_error(request, error)

    def cancel(self, request: InferRequest) -> None:
        """Give up a request that was submitted; see :meth:`InferRequest.cancel`."""
        request.cancel()

    def find(self, request: InferRequest) -> ServedModel:
        """The version that ``request`` would go to.

        Raises:
            NotFoundError: there is no such model or version.
            UnavailableError: the model or the server is not ready.
        """
        if self._life.state is not _READY:
            raise self._life.not_ready()
        return self._table.find(request.model_name, request.asked.model_version)

    def check(self, request: InferRequest) -> None:
        """Refuse ``request`` if it would be refused before its execution, as far as that is known without a load.

        Raises:
            NotFoundError: there is no such model or version.
            InvalidArgumentError: the request does not fit the model.
            UnavailableError: the model or the server is not ready.
        """
        if self._life.state is not _READY:
            raise self._life.not_ready()
        served = self._find(request)
        if served is not None:
            served.check(request)

    def _trace(self, request: InferRequest) -> None:
        if request.trace is None:
            request.trace = self.tracer.sample(request.model_name, request.trace_context)

    def _find(self, request: InferRequest) -> ServedModel | None:
        """What ``request`` goes to; None if it is a model that is to be loaded first. Raises as :meth:`find` does."""
        try:
            return self._table.find(request.model_name, request.asked.model_version)
        except (NotFoundError, UnavailableError):
            if self._demand.offers(request.model_name):
                return None
            # It may have been loaded for another request meanwhile; else the same is raised again.
            return self._table.find(request.model_name, request.asked.model_version)
