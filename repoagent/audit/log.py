"""The audit log of a server: events from any thread, one line each, and what happens if none can be written."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from repoagent.audit.file import AuditFile
from repoagent.audit.lines import Head, make_line, plain
from repoagent.audit.sink import Actor, Audit, AuditError, What, current_actor
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.storage.secrets.keys import builtin_providers, resolve_key

logger = logging.getLogger(__name__)


Note = tuple[str, str, What, Actor]

_PER_SECOND: Final = 100
_WAITING: Final = 1024
_CLOSING_SECONDS: Final = 10.0
_SAY_AFTER: Final = 1.0
"""Seconds between the first note that is left out and the line that counts it, with all that followed."""
_STOP: Final = object()
_SAY: Final = object()


class NoteWriter:
    """Hands items to ``write`` on a thread of its own, which starts with the first one.

    ``None`` is an order that always gets through, as notes that are not limited do. Of the others at most a hundred a
    second do: strangers cause them, and must not fill a disk. What is left out is counted, and a note of its own states
    how much.
    """

    def __init__(self, write: Callable[[Note | None], None]) -> None:
        self._write = write
        self._queue: SimpleQueue[Any] = SimpleQueue()  # its put may be called by a handler of signals
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._left = float(_PER_SECOND)
        self._filled = time.monotonic()
        self._unsaid = 0
        self._due: float | None = None
        self.suppressed = 0
        """How many notes were left out."""

    def start(self) -> None:
        """Start the thread, for those who cannot: a handler of signals."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="repoagent-audit", daemon=True)
                self._thread.start()

    def put(self, item: Note | None, *, limited: bool = True) -> None:
        """Take an item; never waits."""
        if item is None:
            self._queue.put(item)
            return
        self.start()
        with self._lock:
            if self._closed or (limited and not self._admits()):
                self.suppressed += 1
                self._unsaid += 1
                if self._unsaid == 1:
                    self._queue.put(_SAY)
                return
        self._queue.put(item)

    def close(self) -> None:
        """Write what is there, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(_STOP)
            thread.join(_CLOSING_SECONDS)

    def _admits(self) -> bool:
        now = time.monotonic()
        self._left = min(_PER_SECOND, self._left + (now - self._filled) * _PER_SECOND)
        self._filled = now
        if self._left < 1 or self._queue.qsize() >= _WAITING:
            return False
        self._left -= 1
        return True

    def _run(self) -> None:
        for item in iter(self._next, _STOP):
            self._write(item)
        self._summarise()

    def _next(self) -> Any:
        """The next item. What was left out meanwhile is counted in time, also if nothing follows it."""
        while True:
            left = None if self._due is None else self._due - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise Empty
                item = self._queue.get(timeout=left)
            except Empty:
                self._due = None
                self._summarise()
                continue
            if item is not _SAY:
                return item
            self._due = time.monotonic() + _SAY_AFTER

    def _summarise(self) -> None:
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            self._write(("audit", "suppressed", {"notes": unsaid}, Actor("operator")))


_SHORTEST: Final = 16


def audit_key(reference: str) -> bytes:
    """The key behind ``env:NAME`` or ``file:PATH``, without a line break at its end.

    Raises:
        RepoAgentError: it cannot be had, or is too short to be a key.
    """
    key = resolve_key(reference, builtin_providers()).rstrip(b"\r\n")
    if len(key) < _SHORTEST:
        raise InvalidArgumentError(f"the key of the audit log has {len(key)} bytes; at least {_SHORTEST} are needed")
    return key


_QUIET_SECONDS: Final = 60.0
_TORN_SHOWN: Final = 1024


class AuditLog(Audit):
    """Records in a file. Close it at the end.

    Args:
        path: The file; ``path.head`` beside it is its lock.
        required: Whether what :meth:`demand` cannot record must not happen.
        sync: Whether every line is on the disk before its event goes on.
        largest: Bytes after which a new file is begun; 0 is no limit.
        key: Every line carries an HMAC made with it, so that who lacks it cannot make lines.
        clock: Seconds since 1970.

    Raises:
        UnavailableError: another server writes this log, or it cannot be opened.
        InvalidArgumentError: what is there is not an audit log.
    """

    def __init__(
        self,
        path: Path,
        *,
        required: bool = False,
        sync: bool = True,
        largest: int = 0,
        key: bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._required = required
        self._key = key
        self._clock = clock
        self._lock = threading.Lock()
        self._file = AuditFile(path, sync=sync, largest=largest)
        self._notes = NoteWriter(self._write_note)
        self.lines = 0
        """How many lines this server has written."""
        self.failures = 0
        """How many lines could not be written."""
        self._complained = -_QUIET_SECONDS
        self._notes.start()
        self._note_recovery()

    @property
    def head(self) -> Head:
        """The last line: keep its hash elsewhere, and lines that go missing at the end will show."""
        with self._lock:
            return self._file.head

    @property
    def suppressed(self) -> int:
        """How many notes came too fast, and are only counted in a line."""
        return self._notes.suppressed

    # -- recording ------------------------------------------------------------------------------------------------

    def demand(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        error = self._write(event, result, what, actor or current_actor())
        if error is not None and self._required:
            raise AuditError(
                f"the audit log cannot be written ({error.strerror}), and this server does nothing of this kind "
                "without a record of it (--audit-required): make room for the log, then try again"
            )

    def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        self._write(event, result, what, actor or current_actor())

    def note(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """See :meth:`Audit.note`. Of what clients cause more than a hundred a second are counted, not written."""
        actor = actor or current_actor()
        limited = event == "denied" or actor.by == "client"  # Strangers must keep nothing else out, nor fill a disk.
        self._notes.put((event, result, plain(what), actor), limited=limited)

    def reopen(self) -> None:
        """Go on in a new file, soon, if this one has been renamed. For a handler of signals: takes no lock."""
        self._notes.put(None)

    def close(self) -> None:
        """Write what was noted, log the head and let go of the file. Twice is once."""
        self._notes.close()
        with self._lock:
            if not self._file.is_open:
                return
            head = self._file.head
            self._file.close()
        logger.info("The audit log %s ends with line %d, SHA-256 %s", self._file.path, head.seq, head.hash)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, event: str, result: str, what: What, actor: Actor) -> OSError | None:
        fields: dict[str, Any] = {"event": event, "result": result, "who": plain(actor.to_dict()), "what": plain(what)}
        with self._lock:
            if self._file.lost:
                fields["lost"] = self._file.lost
            try:
                self._file.append(lambda before: make_line(fields, before, self._clock(), self._key))
            except OSError as error:
                failure: OSError | None = error
                self.failures += 1
            else:
                failure = None
                self.lines += 1
        if failure is not None:
            self._complain(event, failure)
        return failure

    def _complain(self, event: str, error: OSError) -> None:
        now = time.monotonic()
        with self._lock:
            due = now - self._complained >= _QUIET_SECONDS
            if due:
                self._complained = now
            lost = self._file.lost
        if due:
            kept = "; loads and changes of settings are refused" if self._required else ""
            logger.error(
                "the audit log %s cannot be written: %s (event '%s'; %d lost so far)%s",
                self._file.path,
                error.strerror,
                event,
                lost,
                kept,
            )

    def _write_note(self, item: "tuple[str, str, What, Actor] | None") -> None:
        if item is not None:
            self._write(*item)
            return
        try:
            with self._lock:
                renamed = self._file.is_open and self._file.reopen()
        except OSError as error:
            logger.error("the audit log %s cannot be opened again: %s", self._file.path, error.strerror)
        except RepoAgentError as error:
            logger.error("%s", error)
        else:
            logger.info("the audit log %s %s", self._file.path, "is a new file" if renamed else "was not renamed")

    def _note_recovery(self) -> None:
        """The first line after a start that did not find what the last server left."""
        tail, noted = self._file.found
        head = tail.head
        if tail.torn:
            text = tail.torn[:_TORN_SHOWN].decode("utf-8", "backslashreplace")
            self.record("audit", "torn", {"bytes": len(tail.torn), "text": text})
            logger.warning("the last line of the audit log %s was cut off, and has been removed", self._file.path)
        if head is not None and (noted.seq > head.seq or (noted.seq == head.seq and noted != head)):
            self.record("audit", "differs", {"noted": str(noted), "found": str(head)})
            logger.warning(
                "the audit log %s ends with line %d, but its last server noted that it wrote line %d (%s)",
                self._file.path,
                head.seq,
                noted.seq,
                noted.hash,
            )
