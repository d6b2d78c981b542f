"""What systemd's watchdog is sent, and when."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from repoagent_server.program.signals import watchdog


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "3000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        yield sock


def test_a_process_that_works_reports_itself_and_one_that_hangs_does_not(systemd: socket.socket) -> None:
    turns, hangs, go = [0], threading.Event(), threading.Event()

    def turn() -> None:
        turns[0] += 1
        if turns[0] == 4:
            hangs.set()
            go.wait(30)

    with watchdog(turn):
        assert [systemd.recv(64) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        assert hangs.wait(30)
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(64)
        systemd.settimeout(30)
        go.set()
        assert systemd.recv(64) == b"WATCHDOG=1"


@pytest.mark.parametrize(("name", "value"), [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "0"), ("NOTIFY_SOCKET", "")])
def test_who_is_not_asked_reports_nothing(
    name: str, value: str, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(threading, "Thread", pytest.fail)
    with watchdog(pytest.fail):
        pass
