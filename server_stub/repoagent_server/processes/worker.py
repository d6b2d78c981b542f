"""A worker's core: it serves what the keeper has it build, and asks the keeper about everything else."""

import base64
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from repoagent.api.report import LoadReport
from repoagent.audit import Actor, Audit, current_actor
from repoagent.audit.sink import What
from repoagent.config import ModelConfig
from repoagent.errors import CancelledError, RepoAgentError, UnavailableError, UnsupportedError, error_of
from repoagent.loader.chain import LoadedChain
from repoagent.loader.loader import Loader
from repoagent.serving.assembly import CoreOptions
from repoagent.serving.core import ServingCore
from repoagent.serving.lifecycle.loaded_model import LoadedModel
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.reception import ServerState
from repoagent.serving.requests.request import read_labels
from repoagent.serving.versions.ensemble_builder import ForbiddenStepError
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.serving.versions.served_model import ServedModel
from repoagent.storage.files.files import DirectoryFiles
from repoagent.storage.repositories.url import parse_url
from repoagent_server.processes.calls import Calls
from repoagent_server.processes.links import Links, passing_version

_ANSWER_SECONDS: Final = 30.0
_MOST_ASKERS: Final = 4096
_EXPECTED_SECONDS: Final = 5.0
"""How long a request for a model that is about to be shown waits for that."""


class _NoLoader:
    """In the place of a loader: no agent runs here."""

    workspace_fault: Final = None

    def admit(self, _model: str, _config: ModelConfig) -> None:
        """The keeper decides."""


class WorkerCore(ServingCore):
    """Inference and what is known of the models here; loads, states and numbers of all workers are the keeper's."""

    def __init__(self, options: CoreOptions, calls: Calls) -> None:
        nowhere = RepositorySet((), lambda url: _no_repository(url))
        super().__init__(options, loader=cast(Loader, _NoLoader()), repositories=nowhere)
        self._calls = calls
        self.audit = AskedAudit(calls)
        self.models = Models(self._table, self._context.builder)
        self._demand = AskedDemand(self, calls, self._table, self._context.dependencies, nowhere)
        self.actors: dict[int, Actor] = {}
        # Others than those of the process whose place this one takes: the keeper may still ask about its clients.
        self.numbers = itertools.count(os.getpid() << 32)

    def start(self) -> list[str]:
        """Be ready for requests; the keeper loads models."""
        self._life.enter(ServerState.STARTING, ServerState.INITIALIZED)
        self._life.enter(ServerState.READY, ServerState.STARTING)
        return []

    def manages(self, number: int, model: str) -> bool:
        """For the keeper: whether the client of a call may bring ``model`` into service."""
        actor = self.actors.get(number)
        return actor is not None and (actor.manages is None or actor.manages(model))

    @contextmanager
    def _acting(self) -> Iterator[list[Any]]:
        """Who asks, as a call to the keeper has it."""
        actor, number = current_actor(), next(self.numbers)
        self.actors[number] = actor
        try:
            yield [number, actor.to_dict(), actor.manages is not None]
        finally:
            del self.actors[number]

    def load(
        self,
        name: str,
        *,
        config: str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        version: int | None = None,
    ) -> LoadReport:
        """See :meth:`ServingCore.load`; in all workers, or in none."""
        text = config.decode() if isinstance(config, bytes) else config
        contents = None if files is None else {path: base64.b64encode(one).decode() for path, one in files.items()}
        with self._acting() as actor:
            return LoadReport.from_dict(self._calls.call("load", actor, name, text, contents, version))

    def unload(
        self, name: str, *, unload_dependents: bool = False, wait: bool = True, version: int | None = None
    ) -> None:
        """See :meth:`ServingCore.unload`; in all workers."""
        with self._acting() as actor:
            self._calls.call("unload", actor, name, unload_dependents, wait, version)

    def report(self, name: str) -> LoadReport | None:
        """See :meth:`ServingCore.report`."""
        found = self._calls.call("report", name, timeout=_ANSWER_SECONDS)
        return None if found is None else LoadReport.from_dict(found)

    def attestation(self, name: str, version: str = "") -> bytes | None:
        """See :meth:`ServingCore.attestation`."""
        found = self._calls.call("attestation", name, version, timeout=_ANSWER_SECONDS)
        return None if found is None else str(found).encode()

    def ready(self) -> bool:
        """See :meth:`ServingCore.ready`."""
        try:
            return bool(self._calls.call("ready", timeout=_ANSWER_SECONDS))
        except RepoAgentError:
            return False

    def has_model(self, name: str) -> bool:
        """See :meth:`ServingCore.has_model`."""
        return self.model_loaded(name) or bool(self._calls.call("has_model", name, timeout=_ANSWER_SECONDS))

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """See :meth:`ServingCore.index`."""
        return list(self._calls.call("index", ready_only, timeout=_ANSWER_SECONDS))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """See :meth:`ServingCore.statistics`; those of all workers together."""
        return dict(self._calls.call("statistics", name, version, timeout=_ANSWER_SECONDS))

    def own_statistics(self, name: str, version: str) -> dict[str, Any]:
        """Those of this worker."""
        return super().statistics(name, version)

    def register_repository(self, url: str, name_mapping: object = None) -> None:
        """Refuse it: a model may not change the keeper's repositories."""
        raise UnsupportedError("a server of several processes keeps the repositories that it was started with")

    def unregister_repository(self, url: str) -> None:
        """Refuse it, too."""
        raise UnsupportedError("a server of several processes keeps the repositories that it was started with")


class AskedDemand(OnDemand):
    """Has the keeper load models, which has the repositories and makes room."""

    def __init__(self, core: WorkerCore, calls: Calls, *parts: Any) -> None:
        super().__init__(*parts)
        self._core = core
        self._calls = calls
        self._askers: dict[Callable[[str], bool] | None, int] = {}
        """The rights of clients whose requests had models loaded, and the numbers of their actors."""

    def offers(self, name: str) -> bool:
        """See :meth:`OnDemand.offers`."""
        return self._core.options.on_demand and bool(self._calls.call("offers", name, timeout=_ANSWER_SECONDS))

    def _load(self, name: str, asker: Actor | None) -> None:
        actor = current_actor()
        if len(self._askers) >= _MOST_ASKERS:
            for number in self._askers.values():
                self._core.actors.pop(number, None)
            self._askers.clear()
        # The same number for the same rights: the keeper remembers who may not have a model loaded.
        number = self._askers.setdefault(actor.manages, next(self._core.numbers))
        self._core.actors[number] = actor
        refusal = self._calls.call("demand", [number, actor.to_dict(), actor.manages is not None], name)
        if refusal is not None:  # A matter of this client's rights.
            raise error_of(*refusal) from ForbiddenStepError(name, "", current_actor())


def _no_repository(url: str) -> Any:
    raise UnsupportedError(f"a worker reads no repository: {parse_url(url).text}")


def _check_readable(model: str, root: str) -> None:
    """Refuse with what to do if the user of the workers may not read a model."""
    try:
        os.scandir(root).close()
    except PermissionError as error:
        raise UnavailableError(
            f"the files of model '{model}' cannot be read by user {os.geteuid()} of --worker-user: let that user "
            "enter the directories above, and read: setfacl -R -m u:USER:rX DIRECTORY"
        ) from error
    except OSError:
        return  # The backend states why.


class AskedAudit(Audit):
    """Has the keeper write what this worker's front ends record."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def demand(self, event: str, _result: str, what: What, actor: Actor | None = None) -> None:
        """See :class:`repoagent.audit.Audit`. What is to be changed here, the keeper has the others change first."""
        if event != "settings":
            raise UnsupportedError(f"a worker does not record '{event}'")
        self._calls.call("settings", dict(what), (actor or current_actor()).to_dict(), timeout=_ANSWER_SECONDS)

    def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """See :class:`repoagent.audit.Audit`."""
        if event != "settings":  # The keeper has recorded what came of them.
            self.note(event, result, what, actor)

    def note(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """See :class:`repoagent.audit.Audit`."""
        self._calls.begin("audit", event, result, dict(what), (actor or current_actor()).to_dict())


class Models:
    """The versions that this worker has, by the keeper's numbers; each method is one of the keeper's calls."""

    links: Links
    """The ways to the other workers; set before the first call."""

    def __init__(self, table: ModelTable, builder: ModelBuilder) -> None:
        self._table = table
        self._builder = builder
        table.wait_for = self.wait_for
        self._lock = threading.Lock()
        self._built: dict[int, tuple[str, ServedModel]] = {}
        self._homed: set[int] = set()
        """Those that the other workers pass requests on to."""
        self.calling = False
        """Whether there is, or was, a model that may have others called, for no client."""
        self._cancelled: dict[int, threading.Event] = {}
        self._expected: dict[str, threading.Event] = {}
        self._lacking: dict[int, str] = {}
        """Numbers of versions that the others serve and this worker could not build, with their models."""

    def stateful(self, backend: str) -> bool:
        """See :meth:`BackendRegistry.stateful`."""
        return self._builder.registry.stateful(backend)

    def let_call(self) -> None:
        """A model that may have others called is about to be built, here or elsewhere."""
        self.calling = True

    def build(
        self, number: int, model: str, version: int, config: str, root: str, fleeting: bool, homed: bool
    ) -> dict[str, Any]:
        """Load one version, and keep it to be shown. ``homed``: the other workers do not load it."""
        cancelled = threading.Event()
        with self._lock:
            self._cancelled[number] = cancelled
        try:
            asked = ModelConfig.FromString(base64.b64decode(config))
            _check_readable(model, root)
            files = DirectoryFiles(Path(root), fleeting=fleeting)
            served = self._builder.build_version(model, asked, files, version, cancelled.is_set)
        finally:
            with self._lock:
                del self._cancelled[number]
        if cancelled.is_set():
            served.close()
            raise CancelledError(f"the load of model '{model}' was cancelled")
        with self._lock:
            self._built[number] = model, served
            self._homed |= {number} if homed else set()
        return {"config": served.config.SerializeToString().hex(), "keeps_files": served.keeps_files}

    def pass_on(self, number: int, model: str, version: int, config: str, root: str, home: int) -> None:
        """Serve a version by passing its requests on to the worker ``home``, which has built it."""
        complete = ModelConfig.FromString(base64.b64decode(config))
        labels = read_labels(complete, DirectoryFiles(Path(root)), self._builder.limits)
        served = passing_version(model, version, complete, labels, self.links, home, number)
        with self._lock:
            self._built[number] = model, served

    def homed(self, number: int) -> ServedModel | None:
        """A version that other workers pass requests on to; None if it is not here."""
        found = self._get(number)
        return found[1] if found is not None and number in self._homed else None

    def cancel(self, number: int) -> None:
        """Have a build end soon."""
        with self._lock:
            cancelled = self._cancelled.get(number)
        if cancelled is not None:
            cancelled.set()

    def expect(self, model: str) -> None:
        """A model is about to be shown by all workers: who finds none waits for that."""
        self._expected.setdefault(model, threading.Event())

    def wait_for(self, model: str) -> bool:
        """Wait until a model that is expected is shown; False if it is not expected."""
        if model in self._lacking.values():
            raise UnavailableError(f"Request for unknown model: '{model}' is being loaded again by this process")
        expected = self._expected.get(model)
        return expected is not None and expected.wait(_EXPECTED_SECONDS)

    def show(self, model: str, versions: list[tuple[int, int, str, bool]]) -> None:
        """Serve these versions of ``model`` and no others. Those that are not built yet are shown later."""
        slot = self._table.slot(model)
        with self._lock:
            found = {version: self._built[number][1] for version, number, *_ in versions if number in self._built}
            lacking = {number: model for _, number, *_ in versions if number not in self._built}
            self._lacking = {one: name for one, name in self._lacking.items() if name != model} | lacking
        for version, _, receipt, in_answers in versions:
            if version in found:
                found[version].show_receipt(receipt, in_answers=in_answers)
        if found:
            slot.show(LoadedModel(cast(LoadedChain, None), found, None))
        expected = self._expected.pop(model, None)
        if expected is not None:
            expected.set()

    def retire(self, number: int) -> None:
        """Serve it no more, and let no new request in but those that others pass on: they had taken them before."""
        self._lacking = {one: model for one, model in self._lacking.items() if one != number}
        found = self._get(number)
        if found is None:
            return
        model, served = found
        slot = self._table.slot(model)
        loaded = slot.loaded
        if loaded is not None and loaded.versions.get(served.version) is served:
            slot.show(loaded.without_version(served.version))
        if number not in self._homed:
            served.retire()

    def running(self, number: int) -> int:
        """How many requests of it are inside."""
        found = self._get(number)
        return found[1].running if found is not None else 0

    def last_used_ms(self, number: int) -> int:
        """When its last request ended; 0 if it had none."""
        found = self._get(number)
        return found[1].last_used_ms if found is not None else 0

    def drain(self, number: int, timeout: float | None) -> bool:
        """Wait until its last request has been answered; no other one comes."""
        found = self._get(number)
        if found is None:
            return True
        found[1].retire()
        return found[1].drain(timeout)

    def drain_homed(self, timeout: float) -> None:
        """Wait until what other workers have passed on has been answered: they pass on nothing more."""
        end = time.monotonic() + timeout
        for number in list(self._homed):
            self.drain(number, max(0.0, end - time.monotonic()))

    def close(self, number: int) -> None:
        """Let go of it."""
        with self._lock:
            found = self._built.pop(number, None)
            self._homed.discard(number)
        if found is not None:
            found[1].close()

    def close_all(self) -> None:
        """Let go of everything: the worker ends."""
        for number in list(self._built):
            self.retire(number)
            self.close(number)

    def _get(self, number: int) -> tuple[str, ServedModel] | None:
        with self._lock:
            return self._built.get(number)
