"""Calls to a store that may never answer."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from repoagent.errors import StoreUnavailableError, UnavailableError

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds that a call still gets once the server stops: an agent's last look into a store that answers."""


class RemoteCalls:
    """The calls to one store. Each runs on a thread of its own, which its caller can leave behind.

    A limited call that takes longer than ``seconds`` raises. From then on the store counts as stalled: calls fail at
    once, except for one every now and then that looks whether it is back. The pause between those grows with the
    threads that were left behind and have not ended, so that a store without time-outs of its own collects few.
    """

    def __init__(self, where: str, seconds: float) -> None:
        self._where = where
        self._seconds = seconds
        self._changed = threading.Condition()
        self._left_behind = 0
        self._stalled_since = ""
        """The time of day, for messages; empty while the store answers."""
        self._next_try = 0.0
        self._end: float | None = None

    def run(self, call: Callable[[], T], *, limited: bool) -> T:
        """The result of ``call``, or what it raises.

        Args:
            call: May be left behind on its thread.
            limited: Whether it may take no longer than the limit. Downloads take as long as bytes arrive: the time
                limits of their sockets apply. Those too are given up when the server stops.

        Raises:
            UnavailableError: the store did not answer in time, has not for a while, or the server stops.
        """
        self._admit()
        one = _Call(call)
        thread = threading.Thread(target=self._work, args=(one,), name="repoagent-remote", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise UnavailableError(f"{self._where} cannot be asked: {error}") from error
        with self._changed:
            while not one.ended:
                left = self._left(one, limited)
                if left is not None and left <= 0:
                    self._give_up(one)
                self._changed.wait(left)
        return one.outcome()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let no one wait for longer than a second from now on."""
        with self._changed:
            self._end = time.monotonic() + _GRACE
            self._changed.notify_all()

    def _admit(self) -> None:
        now = time.monotonic()
        with self._changed:
            if not self._stalled_since:
                return
            if now < self._next_try:
                raise StoreUnavailableError(f"{self._where} has not answered since {self._stalled_since}")
            self._plan_next_try(now)

    def _plan_next_try(self, now: float) -> None:
        self._next_try = now + self._seconds * (1 + self._left_behind)

    def _left(self, one: "_Call", limited: bool) -> float | None:
        deadlines = [one.started + self._seconds] if limited else []
        if self._end is not None:
            deadlines.append(max(self._end, one.started + _GRACE))
        return min(deadlines) - time.monotonic() if deadlines else None

    def _give_up(self, one: "_Call") -> None:
        now = time.monotonic()
        one.left_behind = True
        self._left_behind += 1
        if self._end is not None:
            raise UnavailableError(f"{self._where} does not answer, and the server is stopping")
        self._stalled_since = self._stalled_since or one.since
        self._plan_next_try(now)
        raise StoreUnavailableError(f"{self._where} does not answer within {self._seconds:g} s (--repository-timeout)")

    def _work(self, one: "_Call") -> None:
        one.run()
        with self._changed:
            one.ended = True
            if one.left_behind:
                self._left_behind -= 1
            if not one.left_behind or one.error is None:  # in time, if only with an error; or late, but with an answer
                self._stalled_since = ""
            self._changed.notify_all()


class _Call:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self.error: BaseException | None = None
        self.started: Final = time.monotonic()
        self.since: Final = time.strftime("%H:%M:%S")
        self.ended = False
        self.left_behind = False

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._result
