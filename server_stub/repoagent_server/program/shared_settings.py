"""``--processes``: settings, shared memory, certificates and the rights of clients, changed in all workers or in none.

The keeper has what was changed, for the workers that are started later.
"""

import base64
import logging
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any, Final

from repoagent.audit import NO_AUDIT, acting_as
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent_server.access.access_file import AccessFile
from repoagent_server.handlers.settings import LOG_FORMATS, LogChanges, log_settings, update_log, update_traces
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.processes.calls import Calls, CallsUntil, Ended
from repoagent_server.processes.desk import Pace, client, text_of
from repoagent_server.processes.fleet import Fleet
from repoagent_server.tls.certificates import Certificates

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0
_OF_LOG: Final = {"verbose_level": int, "format": str}
_MOST_REGIONS: Final = 1024
TRACE_SHARE: Final = "trace share"
"""What a worker asks for some of a count of traces by."""

Change = list[Any]
"""The name of a worker's call, and its arguments."""


class SharedSettings:
    """Answers the calls of workers that change something for all, and has them follow the access file and the
    certificates of each way in with TLS."""

    def __init__(self, fleet: Fleet, core: ServingCore, certificates: Mapping[str, Certificates]) -> None:
        self._fleet = fleet
        self._core = core
        self._certificates = certificates
        for name in certificates:
            certificates[name].on_change = partial(self._certify, name)
        self._made: dict[Hashable, Change] = {}
        self._access: AccessFile | None = None

    def follow(self, file: AccessFile) -> None:
        """Have the workers judge clients by what is in force of ``file``, now and whenever that changes."""
        self._access = file
        file.observe(lambda _: self._fleet.have(*_access_change(file)))

    def _certify(self, name: str) -> None:
        """A worker that does not take a certificate is replaced: it need not lose the connections that it has."""
        self._fleet.have_or_replace(*_certificate_change(name, self._certificates[name]))

    def answers(self, worker: Callable[[], int]) -> dict[str, Callable[..., Any]]:
        """What the worker of that number may call, by name."""
        change = Pace(self._fleet).of(partial(self._change, worker))
        return {
            "settings": lambda what, actor: self._share(what) if _is_share(what) else change(what, actor),
            "register": lambda *region: self._register(worker, *region),
            "unregister": lambda name: self._unregister(worker, text_of(name)),
            "refresh": lambda source: self._access.refresh(text_of(source)) if self._access is not None else None,
        }

    def replay(self, calls: CallsUntil) -> None:
        """Have a new worker make what was changed. Nothing else is changed meanwhile."""
        if self._access is not None:
            calls.call(*_access_change(self._access))
        for name, certificates in self._certificates.items():
            calls.call(*_certificate_change(name, certificates))
        for change in list(self._made.values()):
            try:
                calls.call(*change)
            except Ended:
                raise
            except RepoAgentError as error:  # Such as a region whose object its client has removed.
                logger.warning("a new worker cannot make '%s' of an earlier request: %s", change[0], error)

    def _share(self, what: Mapping[str, Any]) -> int:
        return self._core.tracer.hand_out(text_of(what.get("model")), len(self._fleet))

    def _change(self, worker: Callable[[], int], what: Any, actor: Any) -> None:
        if not isinstance(what, Mapping) or not isinstance(what.get("change"), Mapping):
            raise InvalidArgumentError("a change of settings without a change")
        change = {text_of(name): value for name, value in what["change"].items()}
        with acting_as(client(actor)), self._fleet.changing:
            if what.get("setting") == "log":
                self._change_log(worker, change)
            elif what.get("setting") == "trace":
                self._change_traces(worker, text_of(what.get("model")), change)
            else:
                raise InvalidArgumentError("there is no such setting")

    def _change_log(self, worker: Callable[[], int], change: dict[str, Any]) -> None:
        known = {one.name for one in fields(LogChanges)}
        if not all(name in known and type(value) is _OF_LOG.get(name, bool) for name, value in change.items()):
            raise InvalidArgumentError("there is no such setting of the log")
        if change.get("format", LOG_FORMATS[0]) not in LOG_FORMATS or change.get("verbose_level", 0) < 0:
            raise InvalidArgumentError("a setting of the log has no such value")
        before = log_settings()
        undo = {name: before[f"log_{name}"] for name in change}
        update_log(LogChanges(**change), self._core.audit)
        try:
            self._in_all(worker, ["log", change], ["log", undo])
        except RepoAgentError:
            update_log(LogChanges(**undo), NO_AUDIT)
            raise
        earlier = self._made.get("log", ["log", {}])
        self._made["log"] = ["log", {**earlier[1], **change}]

    def _change_traces(self, worker: Callable[[], int], model: str, change: dict[str, Any]) -> None:
        for value in change.values():
            for one in value if isinstance(value, list) else [value]:
                text_of(one) if one is not None else None
        earlier = self._made.get(("trace", model), ["trace", model, {}])[2]
        undo = {name: earlier.get(name) for name in change}
        update_traces(self._core, model, change)
        try:
            self._in_all(worker, ["trace", model, change], ["trace", model, undo])
        except RepoAgentError:
            self._core.tracer.update(undo, model)
            raise
        self._made["trace", model] = ["trace", model, {**earlier, **change}]

    def _register(self, worker: Callable[[], int], name: Any, key: Any, offset: Any, size: Any) -> None:
        if any(type(number) is not int or number < 0 for number in (offset, size)):
            raise InvalidArgumentError("a region has no such size")
        change = ["register", text_of(name), text_of(key), offset, size]
        with self._fleet.changing:
            if len(self._made) > _MOST_REGIONS:
                raise InvalidArgumentError(f"there are {_MOST_REGIONS} changes already")
            self._in_all(worker, change, ["unregister", name])
            self._made["region", name] = change

    def _unregister(self, worker: Callable[[], int], name: str) -> None:
        with self._fleet.changing:
            gone = [one for one in self._made if one[0] == "region" and name in ("", one[1])]  # type: ignore[index]
            for one in gone:
                del self._made[one]
            self._in_all(worker, ["unregister", name], [])

    def _in_all(self, worker: Callable[[], int], change: Change, undo: Change) -> None:
        """Have all workers that serve but ``worker``, which asks, make a change, or none of them."""
        done: list[int] = []
        for index in self._fleet.serving():
            if index == worker():
                continue
            try:
                self._fleet.ask(index, *change, timeout=_SECONDS)
            except Ended:  # Another one takes its place, and makes the change.
                self._fleet.end(index)
            except RepoAgentError:
                for one in done:
                    with suppress(RepoAgentError):
                        self._fleet.ask(one, *undo, timeout=_SECONDS)
                raise
            done.append(index)


def _is_share(what: Any) -> bool:
    """Whether a worker asks for some of a count. A call of its own would end a new worker of an older keeper."""
    return isinstance(what, Mapping) and what.get("setting") == TRACE_SHARE


def _certificate_change(name: str, certificates: Certificates) -> Change:
    return ["certificate", name, [base64.b64encode(one).decode() for one in certificates.material.contents]]


def _access_change(file: AccessFile) -> Change:
    text, sets = file.in_force
    contents = {name: None if one is None else base64.b64encode(one).decode() for name, one in sets.items()}
    return ["access", base64.b64encode(text).decode(), contents]


class SharedRegions(Regions):
    """The regions of a worker: what a client registers here is registered in all."""

    def __init__(self, calls: Calls, *, allowed: bool) -> None:
        super().__init__(allowed=allowed)
        self._calls = calls

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """See :meth:`Regions.register`."""
        self.register_here(name, key, offset, byte_size)
        try:
            self._calls.call("register", name, key, offset, byte_size, timeout=_SECONDS)
        except RepoAgentError:
            super().unregister(name)
            raise

    def register_here(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """The same in this process."""
        super().register(name, key, offset, byte_size)

    def unregister(self, name: str = "") -> None:
        """See :meth:`Regions.unregister`."""
        super().unregister(name)
        self._calls.call("unregister", name, timeout=_SECONDS)

    def unregister_here(self, name: str) -> None:
        """The same in this process."""
        super().unregister(name)
