"""``repoagent`` for scripts: an executable that has its command run by a program of ``warm.py``."""

import json
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.warm import Program, Warm

_MOST: Final = 1 << 18
"""Bytes of arguments and variables."""

_SCRIPT: Final = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
    orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {most})
    orders.connect({address!r})
    socket.send_fds(orders, [json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()], [0, 1, 2])
    program = int(orders.recv(32))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(program, number))
    status = int(orders.recv(32))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class WarmCommand:
    """The executable ``repoagent`` in a directory, until it is closed: with the descriptors, variables and directory
    of who calls it, the status of its program, and signals for it."""

    def __init__(self, warm: Warm, directory: Path) -> None:
        self._warm = warm
        self._programs: list[Program] = []
        self._orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = f"\0repoagent-{os.getpid()}-{id(self)}"
        self._orders.bind(address)
        self._orders.listen()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()
        executable = directory / "repoagent"
        executable.write_text(_SCRIPT.format(python=sys.executable, most=_MOST, address=address))
        executable.chmod(0o755)

    def close(self) -> None:
        """Kill what still runs."""
        self._orders.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._orders.close()
        for program in self._programs:
            program.kill()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                order, _ = self._orders.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._run, args=(order,)))
            self._threads[-1].start()

    def _run(self, order: socket.socket) -> None:
        with order:
            text, files, _, _ = socket.recv_fds(order, _MOST, 3)
            words, env, cwd = json.loads(text)
            stdin, stdout, stderr = files
            program = self._warm.start(words, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
            self._programs.append(program)
            for file in files:
                os.close(file)
            with suppress(OSError):  # Who called it has been killed.
                order.send(b"%d" % program.pid)
                order.send(b"%d" % program.wait())
