"""Requests from one worker to another: a model that has a home is in one worker, and the others pass requests on to it.

Each pair of workers has a socket, which the keeper makes and neither reads nor writes.

One thread looks after the sockets. It lends them to the event loop of a front end, which reads what comes as it reads
what clients send: no thread has to be woken up for it. What takes a while goes back to the thread.
"""

import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from repoagent.config import ModelConfig
from repoagent.errors import InternalError, UnavailableError
from repoagent.limits import Limits
from repoagent.nested_text import read_json
from repoagent.serving.instances.backend import BackendInstance, BackendModel, BatchRunner, InstanceSpec
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest, Labels
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.served_model import ServedModel
from repoagent_server.processes.link import Find, Link, Rights
from repoagent_server.shared.connections import InFlight

logger = logging.getLogger(__name__)

_BETWEEN_CHOICES: Final = 256
"""Turns of reading after which another event loop may be the busiest."""
_NEWS_BYTES: Final = 64
_OF_ONE_WORKER: Final = 2
"""Sockets to one worker: that of the process which is leaving, too. A hostile one could ask for others without end."""


class Links:
    """The sockets to the other workers, by their numbers, and the thread that reads all of them.

    Sockets come over ``news``, at any time; a second one for the same worker replaces the first. ``find`` has the
    versions whose home is here. ``broken`` is called with the number of a worker that a new socket is needed for.
    ``rights`` are asked for each request that comes.
    """

    def __init__(
        self,
        news: socket.socket,
        find: Find,
        broken: Callable[[int], object],
        limits: Limits,
        rights: Rights = Rights(),  # noqa: B008 - a tuple
    ) -> None:
        self._news = news
        self._find = find
        self._broken = broken
        self._limits = limits
        self._rights = rights
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links: dict[int, Link] = {}
        self._lacking: set[int] = set()
        """Workers whose socket could not be taken."""
        self._poller = select.poll()
        self._loops: dict[LoopReader, InFlight] = {}
        self._before: dict[LoopReader, int] = {}
        """How many requests each had begun when the choice was made."""
        self._loop: LoopReader | None = None
        """That reads the sockets, as far as they are lent."""
        self._turns = 0
        self._returned: deque[Link] = deque()

    def start(self) -> None:
        """Read, from now on."""
        for fd in (self._news.fileno(), self._wake):
            self._poller.register(fd, select.POLLIN)
        threading.Thread(target=self._run, name="repoagent-links", daemon=True).start()

    def get(self, worker: int) -> Link | None:
        """The way to ``worker``; None while there is none."""
        link = self._links.get(worker)
        if link is None and worker in self._lacking:
            self._lacking.discard(worker)
            self._broken(worker)
        return link

    def _run(self) -> None:
        by_fd: dict[int, Link] = {}
        while True:
            for fd, event in self._poller.poll():
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                elif fd == self._news.fileno():
                    self._accept(by_fd)
                else:
                    self._serve(by_fd, fd, event)
            for _ in range(len(self._returned)):
                link = self._returned.popleft()
                link.lent = None
                self._serve(by_fd, link.fd, select.POLLIN)
            for link in by_fd.values():
                self._lend(link)
                self._listen(link)

    def _listen(self, link: Link) -> None:
        """Wait for what the thread has to do with a link."""
        events = select.POLLIN * (link.lent is None) | select.POLLOUT * link.backlogged
        if events:
            self._poller.register(link.fd, events)
        else:  # Its end would be reported all the same.
            with suppress(KeyError):
                self._poller.unregister(link.fd)

    # -- sockets that an event loop reads ------------------------------------------------------------------------

    def join(self, in_flight: InFlight) -> None:
        """The event loop of this thread, whose requests ``in_flight`` counts, may read the sockets while it runs.

        Of several the busiest does: two threads that share an interpreter wait for each other.
        """
        loop = LoopReader.here()
        if loop is not None:
            self._loops[loop] = in_flight
            self._choose()

    def _choose(self) -> None:
        """Have the loop read that has begun most requests since this was asked last."""
        begun = {loop: in_flight.begun for loop, in_flight in list(self._loops.items())}
        lately = {loop: count - self._before.get(loop, 0) for loop, count in begun.items()}
        self._before = begun
        busiest = max(lately, key=lately.__getitem__)
        if self._loop is None or lately[busiest] > 2 * lately.get(self._loop, 0):
            self._loop = busiest
            self._wake_up()

    def _wake_up(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _lend(self, link: Link) -> None:
        """Have the loop read the socket, where there is one, once no other loop has it."""
        loop = self._loop
        if link.lent is loop or link.for_thread:
            return
        if link.lent is not None:
            link.lent.post(partial(self._give_back, link))
        elif loop is not None:
            link.lent = loop
            if not loop.post(partial(self._watch, link, loop)):
                link.lent = None

    def _watch(self, link: Link, loop: LoopReader) -> None:
        try:
            if LoopReader.here() is loop:  # else it is ending
                link.watched = loop.watch(link.fd, partial(self._readable, link), partial(self._give_back, link))
                return
        except OSError as error:
            logger.warning("a thread reads what worker %d sends, not an event loop: %s", link.worker, error)
        self._loops.pop(loop, None)
        if self._loop is loop:
            self._loop = None
        self._return(link)

    def _readable(self, link: Link) -> None:
        self._turns += 1
        if not self._turns % _BETWEEN_CHOICES:
            self._choose()
        going_on = link.read(link.lent)
        if not going_on or link.for_thread:
            self._give_back(link)

    def _give_back(self, link: Link) -> None:
        """Leave the socket to the thread. On the loop's thread; twice is once."""
        loop, watched = link.lent, link.watched
        if loop is not None and watched is not None:
            link.watched = None
            loop.forget(watched)
            self._return(link)

    def _return(self, link: Link) -> None:
        self._returned.append(link)
        self._wake_up()

    def _accept(self, by_fd: dict[int, Link]) -> None:
        text, descriptors, _, _ = socket.recv_fds(self._news, _NEWS_BYTES, 1)
        if not text:  # The keeper has gone; who talks to it ends this process.
            self._poller.unregister(self._news.fileno())
            self._news.close()
            return
        worker = int(read_json(text))
        if not descriptors:
            logger.error("there is no way to worker %d: no file descriptor is left", worker)
            self._lacking.add(worker)
            return
        os.set_inheritable(descriptors[0], False)
        sock = socket.socket(fileno=descriptors[0])
        for fd in [fd for fd, link in by_fd.items() if link.worker == worker][: 1 - _OF_ONE_WORKER]:
            by_fd[fd].end()  # What is read next is that.
        self._links[worker] = by_fd[sock.fileno()] = Link(
            worker, sock, self._find, self._wake_up, self._limits, self._rights
        )

    def _serve(self, by_fd: dict[int, Link], fd: int, event: int) -> None:
        link = by_fd[fd]
        if event & select.POLLOUT:
            link.flush()
        if link.lent is not None or not event & ~select.POLLOUT or link.read():
            return
        with suppress(KeyError):
            self._poller.unregister(fd)
        del by_fd[fd]
        if self._links.get(link.worker) is link:
            del self._links[link.worker]
        link.close()
        if link.fault:
            self._broken(link.worker)


class _Elsewhere(BackendModel):
    """In the place of a model whose home is another worker."""

    asks = True

    def __init__(self, links: Links, home: int, handed: int) -> None:
        self._links = links
        self._home = home
        self._handed = handed

    def check_ready(self) -> bool:
        """What its home answers."""
        link = self._links.get(self._home)
        return link is not None and link.ready(self._handed)

    def create_instance(self, spec: InstanceSpec) -> BackendInstance | BatchRunner:
        raise InternalError("the model is executed by another process")

    def close(self) -> None:
        """Nothing is held."""


class _Passing(Scheduler):
    """Passes requests on to the home of the model."""

    def __init__(self, model_name: str, links: Links, home: int, handed: int) -> None:
        super().__init__(model_name)
        self._links = links
        self._home = home
        self._handed = handed

    def submit(self, request: InferRequest) -> None:
        link = self._links.get(self._home)
        if link is None:
            error = UnavailableError(f"the process that has model '{self._model_name}' is being started again")
            answer_error(request, error)
        else:
            link.submit(self._handed, request)

    def close(self) -> None:
        """Nothing waits here."""


def passing_version(
    name: str, version: int, config: ModelConfig, labels: Labels, links: Links, home: int, handed: int
) -> ServedModel:
    """A version whose requests are checked here and executed by the worker ``home``, which has it as ``handed``."""
    return ServedModel(
        VersionContext(name, version, config),
        backend_model=_Elsewhere(links, home, handed),
        scheduler=_Passing(name, links, home, handed),
        labels=labels,
    )
