"""Building a :class:`~repoagent.api.report.LoadReport` while a load runs."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from repoagent.api.report import ActionReport, EntryReport, LoadReport, amount_text


class EntryRecorder:
    """Collects the calls of one entry. Agents may report from threads of their own, so it is locked."""

    def __init__(self, index: int, agent: str, origin: str, code: Mapping[str, str] | None = None) -> None:
        self._index = index
        self._agent = agent
        self._origin = origin
        self._code = code or {}
        self._lock = threading.Lock()
        self._done: list[ActionReport] = []
        self._clear()

    def _clear(self) -> None:
        self._bytes_read = 0
        self._bytes_written = 0
        self._digests: dict[str, str] = {}
        self._notes: list[str] = []
        self._signers: list[str] = []
        self._evidence: list[Mapping[str, str]] = []
        self._progress = ""

    def note_progress(self, done: int, total: int | None, what: str) -> None:
        """Remember how far the agent is: a call that fails reports how far it came."""
        steps = f"{done} of {total} ({what})" if what and total else amount_text(done, total, what)
        self._progress = f"got to {steps}"

    def add(
        self,
        bytes_read: int,
        bytes_written: int,
        digests: Mapping[str, str] | None,
        note: str,
        signer: str = "",
        evidence: Mapping[str, str] | None = None,
    ) -> None:
        """Take what an agent reports for the call it is in."""
        with self._lock:
            self._bytes_read += bytes_read
            self._bytes_written += bytes_written
            self._digests.update(digests or {})
            if note:
                self._notes.append(note)
            if signer:
                self._signers.append(signer)
            if evidence:
                self._evidence.append(evidence)

    def finish(self, action: str, outcome: str, seconds: float, error: str | None) -> None:
        """Close the line of one call; what was added since the last one belongs to it."""
        with self._lock:
            if outcome != "ok" and self._progress:
                self._notes.append(self._progress)
            self._done.append(
                ActionReport(
                    action=action,
                    outcome=outcome,
                    seconds=seconds,
                    bytes_read=self._bytes_read,
                    bytes_written=self._bytes_written,
                    digests=self._digests,
                    notes=tuple(self._notes),
                    error=error,
                    signers=tuple(self._signers),
                    evidence=tuple(self._evidence),
                )
            )
            self._clear()

    def build(self) -> EntryReport:
        with self._lock:
            return EntryReport(self._index, self._agent, self._origin, tuple(self._done), self._code)


class ReportBuilder:
    """The report of one load as it grows. ``clock`` gives seconds."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._started = clock()
        self._seconds: float | None = None
        self._outcome = "loading"
        self._error: str | None = None
        self._details: dict[str, Any] = {}
        self._entries: list[EntryRecorder] = []

    def note(self, **details: Any) -> None:
        """Add to the details of the report."""
        self._details.update(details)

    def entry(self, agent: str, origin: str, code: Mapping[str, str] | None = None) -> EntryRecorder:
        """Begin the next entry of the chain."""
        recorder = EntryRecorder(len(self._entries), agent, origin, code)
        self._entries.append(recorder)
        return recorder

    def drop_entries(self) -> None:
        """Forget the entries: the load begins again."""
        self._entries.clear()

    def end(self, outcome: str, error: str | None = None) -> None:
        """Set the outcome. The first end of a load, good or bad, stops the clock."""
        self._outcome = outcome
        if error is not None:
            self._error = error
        if self._seconds is None:
            self._seconds = self._clock() - self._started

    def build(self) -> LoadReport:
        """The report as it stands: an immutable value."""
        seconds = self._seconds if self._seconds is not None else self._clock() - self._started
        entries = tuple(recorder.build() for recorder in self._entries)
        return LoadReport(self._model, self._outcome, seconds, entries, self._error, details=dict(self._details))
