"""The process that keeps agents, keys, audit and the life cycle of every model, and opens no port to a client."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from repoagent.beneath.jail import landlock_version
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.loader.settings import AttestOptions, AuditOptions
from repoagent.serving.core import CoreOptions, ServingCore
from repoagent.storage.workspaces.workspace import forbid_core_dumps
from repoagent_server.access.access_file import AccessFile
from repoagent_server.http.listener import bound, bound_unix, is_unix, release
from repoagent_server.processes.builder import FleetBuilder
from repoagent_server.processes.desk import Desk
from repoagent_server.processes.fleet import Fleet
from repoagent_server.processes.user import WorkerUser
from repoagent_server.processes.versions import Handed
from repoagent_server.program.front_ends import naming_the_flag, tls_files, with_ports
from repoagent_server.program.options import GRPC, ServeOptions
from repoagent_server.program.shared_settings import SharedSettings
from repoagent_server.shared.connections import InFlight
from repoagent_server.tls.certificates import Certificates

logger = logging.getLogger(__name__)

_PROGRAM: Final = "repoagent_server.program.worker_start"
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
"""Between two tries to load what a worker lacks."""
_ATTEMPTS: Final = 20
"""How often a free port is looked for that all sockets of a way in can have."""


class Keeper:
    """A core whose versions are built by workers, and the workers' ports.

    Raises:
        RepoAgentError: a port cannot be had, a file of TLS cannot be used, or the core's options are wrong.
    """

    def __init__(self, options: ServeOptions, core_options: CoreOptions) -> None:
        if not options.allow_core_dumps:
            forbid_core_dumps()  # A worker may not look into this process, either.
        if not landlock_version() and options.worker_user is None:
            logger.warning("the kernel has no Landlock: a worker can look into the keeper; see --worker-user")
        self._user = WorkerUser.of(options.worker_user) if options.worker_user is not None else None
        self._logs = options.log.file, options.request_log
        self._certificates = {name: Certificates(files) for name, files in tls_files(options).items()}
        self._ports = _Ports(options)
        self._fleet = Fleet(
            options.processes,
            _PROGRAM,
            _for_workers(with_ports(options, self._ports.numbers)),
            self._ports.sockets,
            lambda fleet, worker: self._desk.answers(fleet, worker) | self._settings.answers(worker),
            on_missing=self._missing,
            deadliest=options.limits.worker_deaths,
            replay=lambda calls: self._settings.replay(calls),
            user=self._user,
        )
        self._closed = threading.Event()
        self._reload = os.eventfd(0, os.EFD_CLOEXEC)
        self._silence_seconds = float(options.limits.worker_silence_seconds)
        self._leave_seconds = float(options.exit_timeout_secs)
        self._opened = self._refused = self._finished = False
        with ExitStack() as undo:
            undo.callback(self._ports.close)
            self.core = ServingCore(core_options, make_builder=partial(FleetBuilder, fleet=self._fleet))
            undo.pop_all()
        self._fleet.private = self.core.private_directories
        allowed = options.allow_load_parameters
        self._desk = Desk(self.core, core_options.audit, allow_load_parameters=allowed)
        self._settings = SharedSettings(self._fleet, self.core, self._certificates)
        self.fronts = {name: _Port(self, *address) for name, address in self._ports.addresses.items()}

    def follow(self, file: AccessFile) -> None:
        """Have the workers judge clients by an access file that is read here."""
        self._settings.follow(file)

    def start(self, page: Callable[[], str] | None) -> None:
        """Start the workers, which answer nothing yet; ``page`` is the keeper's part of the metrics.

        Raises:
            RepoAgentError: one does not start.
        """
        self._desk.page = page
        self._fleet.start()
        for certificates in self._certificates.values():
            certificates.watch()
        whose = f", as user '{self._user.name}' ({self._user.uid})" if self._user is not None else ""
        logger.info("%d worker processes have started%s", len(self._fleet), whose)
        threading.Thread(target=self._reload_when_asked, name="repoagent-reload", daemon=True).start()
        if self._silence_seconds:
            threading.Thread(target=self._watch, name="repoagent-watch", daemon=True).start()

    def turn(self) -> None:
        """Return if this process works: nothing holds for long what each change of a model or worker needs."""
        with self._fleet.changing, self._fleet.lock:
            self.core.ready()

    def _watch(self) -> None:
        while not self._closed.wait(self._silence_seconds / 4):
            self._fleet.watch(self._silence_seconds)

    def open(self) -> None:
        """Have the workers answer."""
        if not self._opened:
            self._opened = True
            self._fleet.open()

    def hang_up(self) -> None:
        """Have them open their logs again. Takes no lock."""
        if self._user is not None:
            with suppress(RepoAgentError):  # The workers report that they cannot open it.
                self._user.prepare_logs(*self._logs)
        self._fleet.hang_up()

    def reload(self, *_: object) -> None:
        """SIGUSR2: put new processes in the places of the workers, one after the other. Takes no lock."""
        os.eventfd_write(self._reload, 1)

    def _reload_when_asked(self) -> None:
        while not self._closed.is_set():
            os.eventfd_read(self._reload)
            if not self._closed.is_set():
                self._fleet.replace(self._leave_seconds)

    def refuse(self) -> None:
        """Have them take nothing new."""
        if not self._refused:
            self._refused = True
            self._fleet.refuse()

    def finish(self, timeout: float) -> None:
        """Have them answer what is left, and end."""
        if not self._finished:
            self._finished = True
            self._fleet.finish(timeout)

    def close(self) -> None:
        """Unload what is loaded, and end the workers. Twice is once."""
        self._closed.set()
        os.eventfd_write(self._reload, 1)
        for certificates in self._certificates.values():
            certificates.close()
        with suppress(RepoAgentError):
            self.core.stop()
        self._fleet.close()
        self._ports.close()

    def _missing(self, handed: Handed, deadly: str) -> None:
        """A new worker could not build a version: its files had gone, or it died of it."""
        try:
            if deadly:
                self.core.unload_for_good(handed.model, deadly)
            else:
                self.core.reload(handed.model)
        except RepoAgentError as error:
            logger.error("model '%s' is not served by all workers, and is tried again: %s", handed.model, error)
            threading.Thread(
                target=self._try_again, args=(handed.model,), name="repoagent-missing", daemon=True
            ).start()

    def _try_again(self, model: str) -> None:
        """Load a model that a worker lacks again until it is there, or is unloaded."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._closed.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            with suppress(RepoAgentError):  # The load has logged it.
                self.core.reload(model)
                return


class _Port:
    """One way in, as the program sees it: the workers have it."""

    certificate_end: Final = None

    def __init__(self, keeper: Keeper, address: str, port: int) -> None:
        self._keeper = keeper
        self._address = address, port

    def bind(self) -> tuple[str, int]:
        """Its address; it is bound."""
        return self._address

    def start(self) -> None:
        """Answer requests, at all ports."""
        self._keeper.open()

    def turn(self) -> None:
        """It is the workers that come round."""

    def on_loop(self, call: Callable[[InFlight], object]) -> None:
        """It is the workers that have event loops."""

    def part(self, timeout: float) -> None:
        """It is the workers that leave."""

    def refuse(self) -> None:
        """Take no new requests."""
        self._keeper.refuse()

    def drain(self, timeout: float) -> bool:
        """Answer what is left."""
        self._keeper.finish(timeout)
        return True

    def stop(self) -> None:
        """End the workers."""
        self._keeper.close()


def _for_workers(options: ServeOptions) -> ServeOptions:
    """The options without what only the keeper needs: no path of a key, no policy, no repository."""
    return replace(
        options,
        model_repository=(),
        load_model=(),
        agent_policy=None,
        repoagent_directory=None,
        repoagents_from_directory=(),
        allow_config_variables=(),
        cache_directory=None,
        audit=AuditOptions(),
        attest=AttestOptions(),
        conversion_cache=None,
        conversion_sign_key=None,
        worker_user=None,
        ready_file=None,
        notes=(),
        warnings=(),
    )


class _Ports:
    """The sockets of all workers, by the names of the ways in.

    Raises:
        UnavailableError: an address cannot be had.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.addresses: dict[str, tuple[str, int]] = {}
        self.sockets: dict[tuple[str, int], list[socket.socket]] = {}
        try:
            for name, (address, port, shared) in options.places().items():
                host, number = address.removeprefix("[").removesuffix("]"), 0
                with naming_the_flag(name):
                    if is_unix(address) and name == GRPC:  # Each worker accepts from the one there is.
                        made = [bound_unix(address)]
                        made += [made[0].dup() for _ in range(options.processes - 1)]
                    else:
                        made = _sockets(host, port, options.processes, shared=shared)
                        number = int(made[0].getsockname()[1])
                self.sockets[host, number] = made
                self.addresses[name] = address, number
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> dict[str, int]:
        """The port of each way in."""
        return {name: port for name, (_, port) in self.addresses.items()}

    def close(self) -> None:
        """Let go of them. Twice is once."""
        for address, made in self.sockets.items():
            for one in made:
                one.close()
            release(*address)
        self.sockets = {}


def _sockets(host: str, port: int, count: int, *, shared: bool) -> list[socket.socket]:
    """``count`` sockets at one port. The kernel deals new connections out to those that listen.

    ``shared``: other servers may have the same port.
    """
    for attempt in range(_ATTEMPTS):
        # Without SO_REUSEPORT first: with it, a server that is there already would share its clients with this one,
        # which only ``shared`` asks for.
        first = bound(host, port, reuse_port=shared)
        number = int(first.getsockname()[1])
        first.close()
        made: list[socket.socket] = []
        try:
            made.extend(bound(host, number, reuse_port=True) for _ in range(count))
            return made
        except UnavailableError:
            for one in made:
                one.close()
            if port or attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")
