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

from repoagent.api import CancelledError, UnsafePathError, open_beneath, walk_beneath
from repoagent_scan.findings import Finding
from repoagent_scan.formats.content import Buffer, read_content
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.errors import MalformedError
from repoagent_scan.formats.format import RISKS, Format
from repoagent_scan.formats.onnx import read_onnx
from repoagent_scan.options import Options

__all__ = ["Scanned", "scan"]

_SHOWN_OPERATORS: Final = 3


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
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Scanned:
    """Look at every file below ``root``.

    Raises:
        CancelledError: ``cancelled`` answered True.
        OSError: a file cannot be read.
    """
    return _Scan(root, options, cancelled).run(progress)


class _Scan:
    def __init__(self, root: Path, options: Options, cancelled: Callable[[], bool]) -> None:
        self._root = root
        self._options = options
        self._cancelled = cancelled
        self._findings: list[Finding] = []
        self._formats: dict[str, Format] = {}
        self._named: set[str] = set()
        """Files that an ONNX model names as its external data."""
        self._bytes = 0

    def run(self, progress: Callable[[int, int], None]) -> Scanned:
        paths = sorted((path, mode) for path, mode in walk_beneath(self._root) if not stat.S_ISDIR(mode))
        for done, (path, mode) in enumerate(paths):
            self._check_cancelled()
            self._look_at(path, stat.S_ISREG(mode))
            progress(done + 1, len(paths))
        for path in sorted(self._formats):
            self._judge(path, self._formats[path])
        return Scanned(self._findings, Counter(self._counted()), self._bytes)

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
                self._formats[path] = format_ = detect(path, data, check_cancelled=self._check_cancelled)
                if format_ is Format.ONNX:
                    self._look_into_onnx(path, data)
        except (MalformedError, UnsafePathError) as error:
            self._find(path, str(error), f'allow_file = "{path}"')

    def _look_into_onnx(self, path: str, data: Buffer) -> None:
        content = read_onnx(data, check_cancelled=self._check_cancelled)
        custom = content.custom(self._options.operators)
        if custom:
            some = ", ".join(custom[:_SHOWN_OPERATORS])
            more = f" and {len(custom) - _SHOWN_OPERATORS} more" if len(custom) > _SHOWN_OPERATORS else ""
            self._find(path, f"operators that ONNX Runtime runs from elsewhere: {some}{more}", "allow_operator")
        for location in sorted(content.locations):
            self._follow(path, location)

    def _follow(self, path: str, location: str) -> None:
        """External data must lie inside the model: the library that loads the model would read any file there is."""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), location))
        if location.startswith("/") or target.startswith("../") or target == ".." or "\0" in location:
            self._find(path, f"external data outside of the model: {location!r}")
        else:
            self._named.add(target)

    def _judge(self, path: str, format_: Format) -> None:
        if format_ is Format.UNKNOWN and path in self._named:
            format_ = self._formats[path] = Format.EXTERNAL_DATA
        if format_ not in self._options.formats:
            self._find(path, f"{format_}: {RISKS[format_]}", f'allow = "{format_}"')

    def _counted(self) -> Iterator[str]:
        return (format_.value for format_ in self._formats.values())

    def _find(self, path: str, reason: str, remedy: str = "") -> None:
        self._findings.append(Finding(path, reason, remedy))


@contextmanager
def _content(root: Path, path: str) -> Iterator[Buffer]:
    with open_beneath(root, path, follow=False) as file:
        yield read_content(file.fileno())
