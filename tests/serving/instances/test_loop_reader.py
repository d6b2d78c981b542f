"""Descriptors that an event loop reads for others, until it ends."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from repoagent.serving.instances.loop_reader import LoopReader


class Source:
    """Keeps what it reads, and what it learns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.read: list[bytes] = []
        self.abandonments = 0
        self.something = asyncio.Event()

    def readable(self) -> None:
        self.read.append(self._socket.recv(100))
        self.something.set()

    def abandoned(self) -> None:
        self.abandonments += 1


def _descriptors_of(sock: socket.socket) -> list[int]:
    """Those of this socket alone: threads of other tests open and close their own."""
    device, inode = os.fstat(sock.fileno()).st_dev, os.fstat(sock.fileno()).st_ino
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it has just been closed
            status = os.fstat(number)
            if (status.st_dev, status.st_ino) == (device, inode):
                found.append(number)
    return found


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=request.param)


def test_a_loop_is_a_reader_on_its_own_thread_alone_and_until_it_ends(runner: asyncio.Runner) -> None:
    async def run() -> None:
        with LoopReader(asyncio.get_running_loop()) as reader:
            assert LoopReader.here() is reader
            elsewhere: list[LoopReader | None] = []
            thread = threading.Thread(target=lambda: elsewhere.append(LoopReader.here()))
            thread.start()
            thread.join(60)
            assert elsewhere == [None]
        assert LoopReader.here() is None

    with runner:
        runner.run(run())


def test_what_is_watched_is_read_even_if_its_owner_closes_it(runner: asyncio.Runner) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with LoopReader(asyncio.get_running_loop()) as reader, there:
            source = Source(here.dup())
            own = reader.watch(here.fileno(), source.readable, source.abandoned)
            here.close()
            there.send(b"a")
            await asyncio.wait_for(source.something.wait(), 60)
            reader.forget(own)
            reader.forget(own)
            there.send(b"b")
            await asyncio.sleep(0)
            source._socket.close()
        assert (source.read, source.abandonments) == ([b"a"], 0)

    with runner:
        runner.run(run())


def test_what_is_watched_stays_as_it_was_for_those_who_wait_for_it(runner: asyncio.Runner) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with here, there, LoopReader(asyncio.get_running_loop()) as reader:
            source = Source(here)
            reader.watch(here.fileno(), source.readable, source.abandoned)
            assert os.get_blocking(here.fileno())

    with runner:
        runner.run(run())


def test_a_descriptor_that_cannot_be_watched_is_not_kept(runner: asyncio.Runner) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        loop = asyncio.get_running_loop()
        with here, there, LoopReader(loop) as reader:
            loop.add_reader = None  # type: ignore[method-assign, assignment]
            source = Source(here)
            with pytest.raises(TypeError):
                reader.watch(here.fileno(), source.readable, source.abandoned)
            assert _descriptors_of(here) == [here.fileno()]

    with runner:
        runner.run(run())


def test_the_end_of_the_loop_closes_every_descriptor_and_says_so(runner: asyncio.Runner) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with here, there:
            source = Source(here)
            with LoopReader(asyncio.get_running_loop()) as reader:
                reader.watch(here.fileno(), source.readable, source.abandoned)
            assert _descriptors_of(here) == [here.fileno()]
            assert source.abandonments == 1

    with runner:
        runner.run(run())


def test_every_call_that_was_posted_is_made_even_if_the_loop_ends_first(runner: asyncio.Runner) -> None:
    made: list[int] = []
    posted: list[bool] = []

    async def run() -> None:
        with LoopReader(asyncio.get_running_loop()) as reader:
            thread = threading.Thread(
                target=lambda: posted.extend(reader.post(partial(made.append, number)) for number in (1, 2))
            )
            thread.start()
            thread.join(60)
        posted.append(reader.post(partial(made.append, 3)))

    with runner:
        runner.run(run())
    assert posted == [True, True, False]
    assert made == [1, 2]


def test_a_call_that_fails_does_not_keep_others_from_being_made(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[int] = []

    def fail() -> None:
        raise RuntimeError("no luck")

    async def run() -> None:
        with LoopReader(asyncio.get_running_loop()) as reader:
            calls: list[Callable[[], None]] = [fail, lambda: made.append(1)]
            assert all(reader.post(call) for call in calls)
            await asyncio.sleep(0)
            assert made == [1]

    with runner:
        runner.run(run())
    assert "a call on an event loop failed" in caplog.text


def test_a_call_that_comes_as_the_loop_ends_and_is_closed_is_made_or_refused() -> None:
    for _ in range(300):
        posted: list[bool] = []
        made: list[int] = []
        faults: list[BaseException] = []
        ready = threading.Event()

        async def run(readers: list[LoopReader], ready: threading.Event = ready) -> None:
            with LoopReader(asyncio.get_running_loop()) as reader:
                readers.append(reader)
                ready.set()

        def post(
            readers: list[LoopReader],
            ready: threading.Event = ready,
            posted: list[bool] = posted,
            made: list[int] = made,
            faults: list[BaseException] = faults,
        ) -> None:
            ready.wait(60)
            try:
                while not posted or posted[-1]:
                    posted.append(readers[0].post(partial(made.append, 1)))
            except BaseException as fault:
                faults.append(fault)

        readers: list[LoopReader] = []
        thread = threading.Thread(target=post, args=(readers,))
        thread.start()
        asyncio.run(run(readers))
        thread.join(60)
        assert faults == []
        assert len(made) == sum(posted)
