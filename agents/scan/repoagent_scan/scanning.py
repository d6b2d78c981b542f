"""Looks at every file of a model and collects what speaks against it."""

import posixpath
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from repoagent.api import CancelledError, OpenedFiles, UnsafePathError, open_beneath, walk_beneath
from repoagent_scan.formats.content import Buffer, read_content
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import ACCEPTED, RISKS, Format, MalformedError
from repoagent_scan.formats.onnx import Range, check_covered, read_onnx
from repoagent_scan.formats.zipped import skops_types
from repoagent_scan.scan_options import Options

_SHOWN: Final = 5
_LONGEST: Final = 500
"""Characters of a path or a reason: both may come from the model's owner."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason not to load the model."""

    path: str
    reason: str
    remedy: str = ""
    """The parameter that accepts it, if there is one."""

    def __post_init__(self) -> None:
        for name in ("path", "reason", "remedy"):
            object.__setattr__(self, name, _printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def describe(findings: Sequence[Finding]) -> str:
    """The first few of ``findings``, how many more there are, and what would accept them."""
    lines = [str(finding) for finding in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        lines.append(f"and {len(findings) - _SHOWN} more")
    remedies = sorted({finding.remedy for finding in findings if finding.remedy})
    hint = f" (the operator accepts this with {', '.join(remedies[:_SHOWN])})" if remedies else ""
    return "; ".join(lines) + hint


def _printable(text: str) -> str:
    """``text`` for logs and terminals: what would move a cursor or begin a line is escaped, and the end cut off."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown)


_SHOWN_OPERATORS: Final = 3
_READ_AS: Final = {
    "onnxruntime": frozenset({Format.ONNX, Format.ORT}),
    "tensorrt": frozenset({Format.PLAN}),
    "llm": frozenset({Format.TEXT}),
}
"""The formats that a backend reads the model's file as, whatever that begins with."""
_PYTHON: Final = "python"
_IN_DIRECTORY: Final = "model.onnx"
"""The model in a directory that is opened as one."""
_UNKNOWN_MODEL: Final = OpenedFiles()


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan found."""

    findings: Sequence[Finding]
    formats: Counter[str] = field(default_factory=Counter)
    """How many files there are of each format."""
    bytes_seen: int = 0
    """The size of all files; of large ones only heads and structure were read."""


def scan(
    root: Path,
    options: Options,
    *,
    opened: OpenedFiles = _UNKNOWN_MODEL,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Scanned:
    """Look at every file below ``root``, and at those of ``opened`` as their backend does.

    Raises:
        CancelledError: ``cancelled`` answered True.
        OSError: a file cannot be read.
    """
    return _Scan(root, options, opened, cancelled).run(progress)


class _Scan:
    def __init__(self, root: Path, options: Options, opened: OpenedFiles, cancelled: Callable[[], bool]) -> None:
        self._root = root
        self._options = options
        self._opened = opened
        self._cancelled = cancelled
        self._findings: list[Finding] = []
        self._formats: dict[str, Format] = {}
        self._named: dict[str, set[Range]] = {}
        """Files that ONNX models name as their external data, and which parts of them."""
        self._bytes = 0

    def run(self, progress: Callable[[int, int], None]) -> Scanned:
        paths = sorted((path, mode) for path, mode, _ in walk_beneath(self._root) if not stat.S_ISDIR(mode))
        for done, (path, mode) in enumerate(paths):
            self._check_cancelled()
            self._look_at(path, stat.S_ISREG(mode))
            progress(done + 1, len(paths))
        for path in sorted(self._formats):
            self._judge(path, self._formats[path])
        return Scanned(self._findings, Counter(format_.value for format_ in self._formats.values()), self._bytes)

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError("the load was cancelled")

    def _look_at(self, path: str, regular: bool) -> None:
        if any(fnmatchcase(path, pattern) for pattern in self._options.files):
            return
        if not regular:
            self._find(path, "it is a link or a special file; a model has only files and directories")
            return
        try:
            with _content(self._root, path) as data:
                self._bytes += len(data)
                format_ = self._executed(path, detect(path, data, check_cancelled=self._check_cancelled))
                self._formats[path] = format_
                if format_ is Format.ONNX:
                    self._look_into_onnx(path, data)
        except (MalformedError, UnsafePathError) as error:
            self._find(path, str(error), _passing(path))

    def _look_into_onnx(self, path: str, data: Buffer) -> None:
        content = read_onnx(data, check_cancelled=self._check_cancelled)
        custom = content.custom(self._options.operators)
        if custom:
            some = ", ".join(custom[:_SHOWN_OPERATORS])
            more = f" and {len(custom) - _SHOWN_OPERATORS} more" if len(custom) > _SHOWN_OPERATORS else ""
            self._find(path, f"operators that ONNX Runtime runs from elsewhere: {some}{more}", "allow_operator")
        for location, ranges in sorted(content.external.items()):
            self._follow(path, location, ranges)

    def _follow(self, path: str, location: str, ranges: set[Range]) -> None:
        """External data must lie inside the model: the library that loads the model would read any file there is."""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), location))
        if location.startswith("/") or target.startswith("../") or target == ".." or "\0" in location:
            self._find(path, f"external data outside of the model: {location!r}")
        else:
            self._named.setdefault(target, set()).update(ranges)

    def _executed(self, path: str, format_: Format) -> Format:
        """The format of what the configuration runs; that of other files is ``format_``."""
        if format_ not in ACCEPTED | {Format.UNKNOWN}:
            return format_
        if self._backend(path) == _PYTHON:
            return Format.PYTHON
        environment = self._opened.environment
        inside = environment and (environment == "." or path == environment or path.startswith(f"{environment}/"))
        return Format.NATIVE if inside else format_

    def _backend(self, path: str) -> str:
        """The backend that opens ``path``, by itself or as what it looks for in a directory; empty if none does."""
        directory, _, name = path.rpartition("/")
        found = self._opened.backends.get(path, "")
        return found or (self._opened.backends.get(directory, "") if name == _IN_DIRECTORY else "")

    def _judge(self, path: str, format_: Format) -> None:
        readable = _READ_AS.get(backend := self._backend(path))
        if readable is not None and format_ not in readable:
            expected = min(format_.value for format_ in readable)
            self._find(path, f"the backend '{backend}' reads it as {expected}, and it is {format_}", _passing(path))
        elif format_ is Format.UNKNOWN and path in self._named:
            self._judge_external_data(path)
        elif format_ not in self._options.formats:
            self._find(path, f"{format_}: {RISKS[format_]}{self._types(path, format_)}", f'allow = "{format_}"')

    def _types(self, path: str, format_: Format) -> str:
        """What a file of skops makes, as part of the reason."""
        if format_ is not Format.SKOPS:
            return ""
        with _content(self._root, path) as data:
            return f"; types: {', '.join(skops_types(data) or ())}"

    def _judge_external_data(self, path: str) -> None:
        self._formats[path] = Format.EXTERNAL_DATA
        try:
            with _content(self._root, path) as data:
                check_covered(data, self._named[path])
        except (MalformedError, UnsafePathError) as error:
            self._find(path, str(error), _passing(path))

    def _find(self, path: str, reason: str, remedy: str = "") -> None:
        self._findings.append(Finding(path, reason, remedy))


def _passing(path: str) -> str:
    return f'allow_file = "{path}"'


@contextmanager
def _content(root: Path, path: str) -> Iterator[Buffer]:
    with open_beneath(root, path, follow=False) as file:
        yield read_content(file.fileno())
