"""A signal is never missed, whenever it comes."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from repoagent_server.program.signals import stop_signals

ITSELF = """
import os, sys
from repoagent_server.program.signals import stop_signals

with stop_signals() as stop:
    assert not stop.made
    os.kill(os.getpid(), int(sys.argv[1]))
    stop.wait()
    assert stop.made
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_came_before_anybody_waited_is_seen(number: int) -> None:
    """In a process of its own: what is left of other tests must not decide who hears the signal."""
    subprocess.run([sys.executable, "-c", ITSELF, str(int(number))], check=True, timeout=60)


def test_a_signal_is_seen_although_nobody_reads_what_is_said_of_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.wait()
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(writer)


def test_a_third_signal_is_an_order_from_the_moment_that_the_first_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who reads the answer to the first may send the others at once, before the handler goes on."""
    written: list[bytes] = []

    def write(_: int, text: bytes) -> int:
        written.append(text)
        if len(written) < 3:
            signal.raise_signal(signal.SIGTERM)
        return len(text)

    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    with stop_signals() as stop, monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        patched.setattr(os, "_exit", end)
        with pytest.raises(Ended, match="1"):
            signal.raise_signal(signal.SIGTERM)
    hint = b" Agents get their last calls; a third signal ends the server without."
    assert written == [b"Signal (15) received%b\n" % more for more in (b".", b"." + hint, b".")]
    assert stop.made


def test_a_second_signal_ends_a_pause() -> None:
    with stop_signals() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        stop.pause(3600)


def test_a_signal_in_the_moment_in_which_the_wait_begins_is_seen() -> None:
    """The other thread goes on in the moment in which this one lets go of the interpreter to wait."""
    for _ in range(300):
        with stop_signals() as stop:
            go = threading.Event()
            sender = threading.Thread(target=_send, args=(go,))
            sender.start()
            go.set()
            stop.wait()
            sender.join()


def _send(go: threading.Event) -> None:
    go.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def test_who_rests_can_be_woken_by_another_thread_and_has_not_been_told_to_stop() -> None:
    with stop_signals() as stop:
        waker = threading.Thread(target=stop.wake)
        waker.start()
        stop.rest()
        waker.join()
        assert not stop.made


def test_afterwards_everything_is_as_before_and_waking_does_nothing() -> None:
    before = _now()
    with stop_signals() as stop:
        assert _now() != before
    stop.wake()
    assert _now() == before


def _now() -> tuple[object, object, int]:
    """Who handles the signals, and where the interpreter writes what comes."""
    written = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(written)
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), written
