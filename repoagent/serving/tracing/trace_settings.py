"""What is traced and where it goes, with the names and values of Triton's trace settings; and the file of traces."""

import io
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, UnsupportedError

logger = logging.getLogger(__name__)

LEVELS: Final = ("TIMESTAMPS", "TENSORS")
MODES: Final = ("triton", "opentelemetry")
COMPUTE: Final = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
"""What traces call the moments of an execution, in their order."""
_FIELDS: Final = {
    "trace_level": "level",
    "trace_rate": "rate",
    "trace_count": "count",
    "log_frequency": "log_frequency",
    "trace_file": "file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSettings:
    """Where spans go in the mode ``opentelemetry``; None takes what OpenTelemetry's environment variables set, or its
    default. The names are those of Triton's ``--trace-config opentelemetry,NAME=VALUE``."""

    url: str = ""
    """Of the collector, for OTLP over HTTP; empty: ``http://localhost:4318/v1/traces``."""
    resource: tuple[tuple[str, str], ...] = ()
    """Attributes of this server, such as ``("service.name", "models")``."""
    bsp_max_queue_size: int | None = None
    """How many spans may wait; what comes on top is lost."""
    bsp_schedule_delay: int | None = None
    """Milliseconds between two batches."""
    bsp_max_export_batch_size: int | None = None

    def to_dict(self) -> dict[str, str]:
        """Those that are given, as texts; a user and password in the URL are left out."""
        scheme, mark, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        shown = {
            "url": f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}",
            "resource": ",".join(f"{name}={value}" for name, value in self.resource),
            "bsp_max_queue_size": self.bsp_max_queue_size,
            "bsp_schedule_delay": self.bsp_schedule_delay,
            "bsp_max_export_batch_size": self.bsp_max_export_batch_size,
        }
        return {name: str(value) for name, value in shown.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Which requests are traced, how far, and into which file. The defaults trace nothing.

    Raises:
        InvalidArgumentError: a level is not known, or a number is out of its range.
    """

    level: frozenset[str] = frozenset()
    """Of :data:`LEVELS`; none is off."""
    rate: int = 1000
    """Every how many requests one is traced."""
    count: int = -1
    """How many traces are made; -1 is no end to it."""
    log_frequency: int = 0
    """After how many traces a file ``FILE.0``, ``FILE.1``, ... is written; 0: all go to ``FILE``."""
    file: str = ""
    mode: str = "triton"
    """Of :data:`MODES`: traces are written to ``file``, or are spans that go to a collector."""
    spans: SpanSettings = field(default_factory=SpanSettings)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(f"unknown trace mode '{self.mode}'; there are {' and '.join(MODES)}")
        if self.mode != "triton" and "TENSORS" in self.level:
            raise InvalidArgumentError(f"Tensor level tracing is not supported by the mode: {self.mode}")
        unknown = sorted(self.level - set(LEVELS))
        if unknown:
            raise InvalidArgumentError(f"unknown trace level '{unknown[0]}'; there are {', '.join(LEVELS)}, and OFF")
        if self.rate < 0 or self.count < -1 or self.log_frequency < 0:
            raise InvalidArgumentError("trace_rate and log_frequency must not be negative, nor trace_count below -1")

    @property
    def problem(self) -> str:
        """Why these settings trace nothing, in Triton's words; empty if they do."""
        if not self.level:
            return "tracing is disabled"
        if self.mode != "triton":
            return ""  # Requests that come with a span of the client's are traced even if the rate is 0.
        if not self.rate:
            return "sample rate must be non-zero"
        return "" if self.file else "trace file name is not given"

    def to_dict(self) -> dict[str, str | list[str]]:
        """The form of Triton's trace extension: texts, and a list of levels. What only one mode has is shown in it."""
        shown: dict[str, str | list[str]] = {
            "trace_level": [level for level in LEVELS if level in self.level] or ["OFF"],
            "trace_rate": str(self.rate),
            "trace_count": str(self.count),
        }
        if self.mode == "triton":
            return {
                **shown,
                "log_frequency": str(self.log_frequency),
                "trace_file": self.file,
                "trace_mode": self.mode,
            }
        return {**shown, "trace_mode": self.mode, **self.spans.to_dict()}


def changed(
    settings: TraceSettings, fallback: TraceSettings, changes: Mapping[str, str | Sequence[str] | None]
) -> TraceSettings:
    """``settings`` with ``changes`` in the form of Triton's trace extension; None takes the value of ``fallback``.

    Raises:
        InvalidArgumentError: a setting or value is not known, or the result asks for traces that cannot be made.
        UnsupportedError: another mode: that is chosen when the server starts.
    """
    values: dict[str, object] = {}
    for name, value in changes.items():
        if name == "trace_mode":
            _check_mode(value, settings.mode)
            continue
        if name not in _FIELDS:
            raise InvalidArgumentError(f"unknown trace setting '{name}'; there are {', '.join(_FIELDS)}")
        key = _FIELDS[name]
        values[key] = getattr(fallback, key) if value is None else _parse(name, key, value)
    result = replace(settings, **values)  # type: ignore[arg-type]
    if result.level and result.problem:
        raise InvalidArgumentError(f"Attempting to set invalid trace setting :{result.problem}")
    return result


def _check_mode(value: str | Sequence[str] | None, mode: str) -> None:
    if value not in (None, mode):
        raise UnsupportedError(f"trace mode '{value}' is not supported: the server was started with mode '{mode}'")


def _parse(name: str, key: str, value: str | Sequence[str]) -> object:
    if key == "file":
        return str(value)
    if key == "level":
        levels = [value] if isinstance(value, str) else list(value)
        return frozenset(level for level in levels if level != "OFF")
    try:
        return int(str(value))
    except ValueError:
        raise InvalidArgumentError(f"failed to parse trace setting '{name}': '{value}' is not a whole number") from None


class TraceFile:
    """``path`` itself, which grows until :meth:`close`, and ``path.0``, ``path.1``, ..., each written at once.

    What cannot be written is lost, which is logged once until something can be written again: a request does not fail
    because of its trace, and what was written before stays readable.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stream: io.FileIO | None = None
        self._size = 0
        self._index = 0
        self._failing = False
        self._has_written = False

    def append(self, records: Sequence[str]) -> None:
        """Add to ``path``; what was there before this object is overwritten."""
        with self._lock:
            try:
                stream = self._stream
                if stream is None or not os.fstat(stream.fileno()).st_nlink:
                    stream = self._take_new_file()
                self._write(stream, ("," if self._size else "[") + ",".join(records))
            except OSError as error:
                self._complain(self._path, error)

    def _take_new_file(self) -> io.FileIO:
        """Begin ``path``: the first one, or that after one that was removed under this server."""
        removed = self._stream
        if removed is not None:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            logger.warning("the trace file '%s' was removed under this server; it goes on in a new one", self._path)
        self._stream = io.FileIO(self._path, "w")
        self._size = 0
        if removed is not None:
            removed.close()
        return self._stream

    def _write(self, stream: io.FileIO, text: str) -> None:
        """Write all of ``text``, or nothing."""
        rest = memoryview(text.encode())
        size = len(rest)
        try:
            while rest:
                rest = rest[stream.write(rest) :]
        except OSError:
            with suppress(OSError):
                stream.truncate(stream.seek(self._size))
            raise
        self._size += size
        self._failing = False

    def write_numbered(self, records: Sequence[str]) -> None:
        with self._lock:
            path = Path(f"{self._path}.{self._index}")
            self._index += 1
        try:
            if self._has_written:  # Then there was a directory.
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"[{','.join(records)}]", encoding="utf-8")
        except OSError as error:
            with suppress(OSError):
                path.unlink()  # A part of it would be no JSON.
            self._complain(str(path), error)
        else:
            self._failing = False
            self._has_written = True

    def close(self) -> None:
        """Complete ``path``, if anything was written to it."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return
            try:
                with stream:
                    if self._size:
                        self._write(stream, "]")
            except OSError as error:
                self._complain(self._path, error)

    def _complain(self, path: str, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            logger.error("failed to write traces to '%s', they are lost: %s", path, error.strerror)
