"""The program of a worker, see ``worker_start``."""

import base64
import gc
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from repoagent.audit import NO_AUDIT, Actor
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.server.exposition.page import Source
from repoagent.storage.workspaces.workspace import forbid_core_dumps
from repoagent_server.access.access import Access, Denials, credential_of
from repoagent_server.access.access_file import rules_of
from repoagent_server.access.rights import AccessError
from repoagent_server.access.tokens import TokenIssuer
from repoagent_server.handlers.settings import LogChanges, update_log
from repoagent_server.http.listener import inherit
from repoagent_server.processes.calls import Calls
from repoagent_server.processes.link import Rights
from repoagent_server.processes.links import Links
from repoagent_server.processes.worker import WorkerCore
from repoagent_server.program.front_ends import (
    FrontEnd,
    certificate_metrics,
    front_ends,
    metrics_page,
    request_log,
    tls_files,
)
from repoagent_server.program.logs import configure
from repoagent_server.program.options import ServeOptions
from repoagent_server.program.program import core_options, let_threads_switch
from repoagent_server.program.shared_settings import TRACE_SHARE, SharedRegions
from repoagent_server.shared.request_log import RequestLog, RequestLogMetrics
from repoagent_server.tls.certificates import HeldCertificates

_START_SECONDS: Final = 60.0
_SHARE_SECONDS: Final = 1.0
_OF_MODELS: Final = (
    *("stateful", "let_call", "build", "pass_on", "cancel", "expect", "show", "retire"),
    *("running", "last_used_ms", "drain", "close"),
)


class Worker:
    """What the keeper may have this process do, by the names of its calls."""

    def __init__(self, sock: socket.socket) -> None:
        self.ended = threading.Event()
        self._stack = ExitStack()
        self._started = threading.Event()
        self._fronts: dict[str, FrontEnd] = {}
        self._core: WorkerCore
        self._regions: SharedRegions
        self._page: Callable[[], str] | None = None
        self._requests: RequestLog | None = None
        self._access = Access()
        self._access_file = Path()
        self._refreshing: Future[Any] | None = None
        self._certificates: dict[str, HeldCertificates] = {}
        own: list[Callable[..., Any]] = [self.start, self.open, self.refuse, self.finish, self.page, self.statistics]
        own += [self.leave, self.turn, self.manages, self.log, self.trace, self.register, self.unregister, self.access]
        own.append(self.certificate)
        answers = {method.__name__: method for method in own}
        answers |= {name: partial(self.of_models, name) for name in _OF_MODELS}
        self._calls = Calls(sock, answers, self._keeper_ended, "keeper")
        self._calls.start()

    def start(self, options: str, listeners: list[list[Any]], links: int, index: int) -> None:
        """Make the front ends, which answer nothing yet. The sockets to other workers come over ``links``."""
        chosen: ServeOptions = pickle.loads(base64.b64decode(options))  # noqa: S301 - the keeper's
        let_threads_switch()
        if not chosen.allow_core_dumps:
            forbid_core_dumps()  # The models of all loads come here, confidential ones, too.
        for number in (links, *(one[-1] for one in listeners)):
            os.set_inheritable(number, False)  # A library of a model may start programs.
        inherit({(address, port): socket.socket(fileno=number) for address, port, number in listeners})
        self._stack.enter_context(configure(chosen.log))
        self._requests = requests = self._stack.enter_context(request_log(chosen.request_log))
        self._core = core = WorkerCore(replace(core_options(chosen), trace_suffix=f"-{index}"), self._calls)
        core.tracer.share_counts(self._trace_share)
        core.start()
        denials, access = Denials(core.audit), None
        if chosen.access is not None:  # Every client is denied until the keeper sends the rules.
            self._access_file, access = chosen.access, self._access
            access.observe(denials.report)
            access.on_unknown_key = self._refresh
        news, models = socket.socket(fileno=links), core.models
        rights = Rights(credential_of, partial(self._judge, access)) if access is not None else Rights()
        models.links = Links(news, models.homed, partial(self._calls.begin, "link"), chosen.limits, rights)
        models.links.start()
        sources: list[Source] = [denials, certificate_metrics(self._fronts)]
        if requests is not None:
            sources.append(RequestLogMetrics(requests))
        self._page = metrics_page(chosen, core, sources, server=False)
        page = partial(self._calls.call, "metrics") if self._page is not None else None
        self._regions = SharedRegions(self._calls, allowed=chosen.allow_client_shm)
        tls = self._certificates = {name: HeldCertificates(files) for name, files in tls_files(chosen).items()}
        self._fronts.update(front_ends(chosen, core, self._regions, access, requests, denials, page, tls))
        for front in self._fronts.values():
            front.bind()
        self._started.set()

    def open(self) -> None:
        """Answer requests."""
        for front in self._fronts.values():
            front.start()
            front.on_loop(self._core.models.links.join)
        gc.collect()
        gc.freeze()

    def refuse(self) -> None:
        """Take no new requests."""
        for front in self._fronts.values():
            front.refuse()

    def turn(self) -> None:
        """Return once each front end has come round: at once, unless this process hangs."""
        for front in list(self._fronts.values()):
            front.turn()

    def leave(self, timeout: float) -> None:
        """Another process has the same sockets: have the clients go there, and end."""
        leaving = [threading.Thread(target=front.part, args=(timeout,)) for front in self._fronts.values()]
        for one in leaving:
            one.start()
        for one in leaving:
            one.join()
        self._core.models.drain_homed(timeout)
        self.finish(timeout)

    def finish(self, timeout: float) -> None:
        """Answer what is left, and end."""
        for front in self._fronts.values():
            front.drain(timeout)
        for front in self._fronts.values():
            front.stop()
        self._core.models.close_all()
        self._core.tracer.close()  # with the traces that have not been written or sent yet
        self.ended.set()

    def page(self) -> str:
        """This worker's page of metrics."""
        return self._page() if self._page is not None else ""

    def statistics(self, name: str, version: str) -> dict[str, Any]:
        """This worker's part of them."""
        return self._core.own_statistics(name, version)

    def log(self, change: dict[str, Any]) -> None:
        """Change settings of this process's log."""
        update_log(LogChanges(**change), NO_AUDIT)

    def trace(self, model: str, change: dict[str, Any]) -> None:
        """Change settings of traces."""
        self._core.tracer.update(change, model)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register shared memory that a client has registered in another worker."""
        self._regions.register_here(name, key, offset, byte_size)

    def unregister(self, name: str) -> None:
        """The opposite."""
        self._regions.unregister_here(name)

    def access(self, text: str, sets: dict[str, str | None]) -> None:
        """Judge clients by the content of an access file and of its key sets: the keeper has read them."""
        contents = {name: None if one is None else base64.b64decode(one) for name, one in sets.items()}
        self._access.replace(rules_of(base64.b64decode(text), contents, self._access_file))

    def certificate(self, name: str, contents: list[str]) -> None:
        """Have new connections of one way in get a certificate: the keeper has read its files."""
        key, certificate, root = map(base64.b64decode, contents)
        self._certificates[name].use((key, certificate, root))

    def _trace_share(self, model: str) -> int:
        """Some of what is left of a count of traces. A request waits for it, so a slow keeper has none."""
        what = {"setting": TRACE_SHARE, "model": model, "change": {}}
        try:
            return int(self._calls.call("settings", what, {}, timeout=_SHARE_SECONDS) or 0)
        except RepoAgentError:
            return 0

    def _refresh(self, issuer: TokenIssuer) -> None:
        """Have the keeper fetch a key set again. One call at a time: anyone can send tokens that make one."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._calls.begin("refresh", issuer.source)

    def _judge(self, access: Access, credential: Any, model: str) -> Actor | None:
        """The client of a request that another worker, a hostile one perhaps, passes on; None: a model has made it.

        One for a client without the right to it is refused, and one for none where no model could have made it."""
        if credential is None and self._core.models.calling:
            return None
        try:
            return access.judge(credential, model)
        except AccessError as error:
            access.denied(error, "passed on by another process")
            raise

    def manages(self, number: int, model: str) -> bool:
        return self._core.manages(number, model)

    def of_models(self, name: str, *arguments: Any) -> Any:
        """Call a method of :class:`repoagent_server.processes.worker.Models`: a load may come before the core is made.

        Raises:
            UnavailableError: the core is not made in time.
        """
        if not self._started.wait(_START_SECONDS):
            raise UnavailableError("the worker has not started")
        return getattr(self._core.models, name)(*arguments)

    def hang_up(self, *_: object) -> None:
        """SIGHUP, from the keeper: the file of the request log has been renamed. Takes no lock."""
        if self._requests is not None:
            self._requests.reopen()

    def _keeper_ended(self, _: str) -> None:
        if not self.ended.is_set():
            os._exit(1)  # Without a keeper nothing of this process is of use; its memory goes with it.


def main() -> None:
    """Serve until the keeper calls ``finish``, or is gone."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Init systems send them to every process of a service: the keeper acts.
    descriptor, sys.argv = int(sys.argv[1]), [""]
    os.set_inheritable(descriptor, False)
    worker = Worker(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGHUP, worker.hang_up)
    worker.ended.wait()
    os._exit(0)
