"""A person who watches ``repoagent serve`` start sees how far a long load is; a pipe or a file sees none of it."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PATIENCE: Final = 120

_AGENT: Final = """\
import logging, socket
from repoagent.api import Agent


class Slow(Agent):
    api_version = 1

    def load(self, model):
        model.progress(1, 4, "weights")
        self.stand(model)
        logging.getLogger("repoagent.slow").info("said in between")
        self.stand(model)
        model.progress(4, 4, "weights")

    def stand(self, model):
        with socket.create_connection(("127.0.0.1", int(model.parameters["port"]))) as gate:
            gate.recv(1)
"""

_BAR: Final = "[#####---------------]  25%  slow: slow weights"
_LOG_LINE: Final = re.compile(r"[EWIV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] .*")


class Terminal:
    """What stands on a terminal of 80 columns; nothing that is written to it may wrap."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.rows = [""]
        self._returned = True
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                text = os.read(self.master, 65536).decode()
            except OSError:  # how Linux says that nobody has the other end open
                return
            with self._changed:
                self._write(text)
                self._changed.notify_all()

    def _write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", text):
            if part == "\n":
                self.rows.append("")
            elif part == "\r":
                self._returned = True
            elif part == "\x1b[K":
                assert self._returned, "it clears the end of a line only"
                self.rows[-1] = ""
            else:
                self._returned = False
                self.rows[-1] += part

    def until(self, text: str) -> list[str]:
        """The rows, once one of them has ``text``."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in row for row in self.rows), PATIENCE), self.rows
            return list(self.rows)

    def close(self) -> None:
        os.close(self.slave)
        self._reader.join(PATIENCE)
        os.close(self.master)


@contextmanager
def _watched(world: Any) -> Iterator[tuple[Any, Terminal]]:
    terminal = Terminal()
    process = subprocess.Popen(world.command(), stdin=subprocess.DEVNULL, stderr=terminal.slave)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait(PATIENCE)
        terminal.close()


def test_a_terminal_shows_the_progress_below_log_lines_that_stay_whole(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    with _watched(world) as (process, terminal):
        gate.reached()
        assert terminal.until(_BAR)[-1] == _BAR
        gate.open()
        gate.reached()
        rows = terminal.until('"said in between"')
        assert _LOG_LINE.fullmatch(next(row for row in rows if "said in between" in row))
        gate.open()
        terminal.until("Started GRPCInferenceService")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert not any("25%" in row or "100%" in row for row in terminal.rows)
    assert terminal.rows[-1] == ""
    heads = [row for row in terminal.rows if ".py:" in row]
    assert all(_LOG_LINE.fullmatch(row) for row in heads), heads
    assert "Signal (15) received." in terminal.rows


def test_a_signal_during_the_load_leaves_no_line_behind(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    with _watched(world) as (process, terminal):
        gate.reached()
        terminal.until(_BAR)
        process.send_signal(signal.SIGTERM)
        terminal.until("Waiting for in-flight requests")
        gate.open()
        gate.reached()
        gate.open()
        assert process.wait(PATIENCE) == 0
    assert "Signal (15) received." in terminal.rows
    assert not any("25%" in row for row in terminal.rows)


def test_a_pipe_gets_no_control_characters(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    server = world.start()
    for _ in range(2):
        gate.reached()
        gate.open()
    server.wait_ready()
    assert server.stop() == 0
    assert "said in between" in server.log
    assert "\x1b" not in server.log
    assert "25%" not in server.log
