"""What a hostile worker sends to take the keeper's time, memory or descriptors: it costs the worker, not the others."""

import fcntl
import json
import os
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import pytest
from repoagent_server.processes import calls
from repoagent_server.processes.calls import Ended

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process import channel
from repoagent.serving.backends.python.process.memory import sealed_file
from server_stub.tests.processes.test_hostile_workers import ANSWER, ASK, RELEASE, Keeper, keeper

__all__ = ["keeper"]  # a fixture


def _packet(kind: int, body: Any, spilled: bool = False) -> bytes:
    text = json.dumps(body).encode()
    return bytes([kind, spilled]) + len(text).to_bytes(4, "little") + text


class Memory:
    """What a worker shares with the keeper; longer messages lie in it."""

    def __init__(self, keeper: Keeper, size: int) -> None:
        self._keeper = keeper
        self._size = size
        self._number = 0

    def send(self, kind: int, body: Any) -> None:
        """Send a long message, in a segment of its own."""
        text = json.dumps([body, None]).encode()
        self._number += 1
        fd = sealed_file(self._size)
        os.pwrite(fd, text, 0)
        head = [None, [self._number, 0, len(text)], [], [], [[self._number, self._size]]]
        socket.send_fds(self._keeper.raw, [_packet(kind, head, spilled=True)], [fd])
        os.close(fd)


def _works(keeper: Keeper) -> bool:
    keeper.send(ASK, [1, "double", [21]])
    return bool(keeper.receive() == [1, None, 42])


@pytest.mark.parametrize("length", [1 << 30, (1 << 32) - 1])
def test_a_length_that_is_longer_than_the_message_ends_the_worker(keeper: Keeper, length: int) -> None:
    keeper.raw.send(bytes([ASK, 0]) + length.to_bytes(4, "little") + b"[]")
    assert keeper.over.wait(30)
    assert "cut off" in keeper.ended[0]


def test_a_gigabyte_that_is_only_stated_ends_the_worker(keeper: Keeper) -> None:
    fd = os.memfd_create("hollow", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 30)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    socket.send_fds(keeper.raw, [_packet(ASK, [None, [1, 0, 1 << 30], [], [], [[1, 1 << 30]]], spilled=True)], [fd])
    os.close(fd)
    assert keeper.over.wait(30)
    assert "holes" in keeper.ended[0]


def test_values_without_end_end_the_worker_before_they_are_read(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long message of them held the keeper's lock for minutes, and took thirty times its length of memory."""
    monkeypatch.setattr(channel, "_MOST_VALUES", 1000)
    memory = Memory(keeper, 1 << 20)
    keeper.calls._answers = {"length": len}
    memory.send(ASK, [7, "length", ["x" * 100_000]])
    assert keeper.receive() == [7, None, 100_000]
    memory.send(ASK, [8, "length", [[{}] * 1000]])
    assert keeper.over.wait(30)
    assert "more than 1000 values" in keeper.ended[0]


def test_long_calls_that_wait_are_refused_from_some_bytes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 loads that an agent holds up would have kept a terabyte of arguments."""
    monkeypatch.setattr(calls, "_WAITING_BYTES", 250_000)
    made = Keeper()
    made.calls._answers = {**made.calls._answers, "hold": lambda _: made.gate.wait(30)}
    memory = Memory(made, 1 << 20)
    for number in range(3):
        memory.send(ASK, [number, "hold", ["x" * 100_000]])
    number, code, text = made.receive()
    assert (number, code) == (2, UnavailableError.code)
    assert "250000 bytes" in text
    assert _works(made), "short ones are taken"
    made.gate.set()
    assert {made.receive()[0] for _ in range(2)} == {0, 1}
    memory.send(ASK, [3, "hold", ["x" * 100_000]])
    assert made.receive() == [3, None, True]
    assert not made.ended
    made.raw.close()
    assert made.over.wait(30)


def test_a_refusal_of_a_hundred_thousand_characters_is_cut(keeper: Keeper) -> None:
    """It is logged, and every index has it."""
    waiting = keeper.calls.begin("build")
    Memory(keeper, 1 << 20).send(ANSWER, [1, int(UnavailableError.code), "x" * 500_000])
    with pytest.raises(RepoAgentError) as refusal:
        waiting.result(30)
    assert len(str(refusal.value)) == 1 << 16


def test_small_messages_without_end_keep_no_other_worker_from_its_answers(keeper: Keeper) -> None:
    other = Keeper()
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            keeper.send(RELEASE, None)
            keeper.send(ANSWER, [12345, None, None])

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert all(_works(other) for _ in range(100))
    finally:
        stop.set()
        thread.join()
    assert not keeper.ended
    other.raw.close()
    assert other.over.wait(30)


def test_who_reads_nothing_is_ended_and_the_others_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_SEND_TIMEOUT", struct.pack("@ll", 0, 100_000))
    deaf = Keeper()
    questions = [deaf.calls.begin("show", "m" * 10_000) for _ in range(1000)]
    with pytest.raises(Ended):
        questions[-1].result(30)
    assert deaf.over.wait(30)
    deaf.raw.close()


@pytest.mark.parametrize("count", [1, 8, 9, 253])
def test_descriptors_that_nothing_names_end_the_worker_and_are_closed(keeper: Keeper, count: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fd = os.open(os.devnull, os.O_RDONLY)
    socket.send_fds(keeper.raw, [_packet(ASK, [[1, "double", [1]], None, [], [], []])], [fd] * count)
    os.close(fd)
    assert keeper.over.wait(30)
    assert "nothing names" in keeper.ended[0]
    for thread in threading.enumerate():
        if thread.name == "repoagent-close":
            thread.join(30)
    assert len(os.listdir("/proc/self/fd")) < before + 1


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("count", [1, 9])
def test_a_socket_whose_close_takes_its_time_does_not_hide_the_end_of_the_worker(named: bool, count: int) -> None:
    """Linger: the thread that read it was held up for as long as the worker wanted, and the fleet lost a place."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as lingers:
        lingers.connect(listener.getsockname())
        peer, _ = listener.accept()
        lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        lingers.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                lingers.send(bytes(1 << 16))
        made = Keeper(start=False)
        opened = [[1, 4096]] if named else []
        packet = _packet(ASK, [[1, "double", [1]], None, [], [], opened])
        socket.send_fds(made.raw, [packet], [lingers.fileno()] * count)
        lingers.close()
        made.calls.start()
        assert made.over.wait(30)
        made.raw.close()
        peer.close()  # The rest of what it should have had is dropped with it.
