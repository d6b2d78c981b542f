"""Asking the code of a model whether it is ready: ``is_ready`` of its instances, with a time limit."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent.errors import RepoAgentError

__all__ = ["Readiness"]

_models: Final = logging.getLogger("repoagent.models")


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of an ``is_ready``."""

    overdue: float
    """When (``time.monotonic``) it has taken too long."""
    result: Future[str] = field(default_factory=Future)
    """Why the instance is not ready; empty if it is."""


class Readiness:
    """``asks`` has the ``is_ready`` of each instance that has one, by the instance's name.

    Each call has a thread. While it runs, other callers share it; none is made beside one that hangs.
    """

    def __init__(self, asks: Mapping[str, Callable[[], Any]], limit_seconds: float) -> None:
        self._asks = asks
        self._limit = limit_seconds
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._noted: dict[str, str] = {}

    def ready(self) -> bool:
        """Whether all instances are ready; one that does not answer in time is not."""
        runs = {name: self._run(name) for name in self._asks}
        left = max((run.overdue for run in runs.values()), default=0.0) - time.monotonic()
        wait([run.result for run in runs.values()], max(0.0, left))
        outcomes = [self._outcome(name, run) for name, run in runs.items()]  # Each is noted.
        return all(outcomes)

    def _run(self, name: str) -> _Run:
        with self._lock:
            run = self._runs.get(name)
            if run is None or run.result.done():
                run = self._runs[name] = _Run(time.monotonic() + self._limit)
                thread = threading.Thread(target=self._call, args=(name, run), name=f"{name}-is-ready", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # The machine has no thread left; the next call tries again.
                    run.result.set_result(f"is_ready cannot be called: {error}")
            return run

    def _call(self, name: str, run: _Run) -> None:
        try:
            answer = self._asks[name]()
        except BaseException as error:
            text = error.message if isinstance(error, RepoAgentError) else f"{type(error).__name__}: {error}"
            run.result.set_result(f"is_ready raised {text}")
            return
        kind = type(answer).__name__
        wrong = "" if isinstance(answer, bool) else f"is_ready must return a bool, not {kind}"
        run.result.set_result(wrong or ("" if answer else "is_ready returned False"))

    def _outcome(self, name: str, run: _Run) -> bool:
        reason = run.result.result() if run.result.done() else f"is_ready has not returned for {self._limit:g} s"
        with self._lock:
            news = reason != self._noted.get(name, "")
            self._noted[name] = reason
        if news:  # Probes ask every few seconds, perhaps for days.
            _models.warning("model instance '%s' is %s", name, f"not ready: {reason}" if reason else "ready again")
        return not reason
