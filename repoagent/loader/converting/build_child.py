"""The process that builds: it reads one order, runs one converter, and reports events until it ends.

Started by :mod:`repoagent.loader.converting.build_process` as ``python -m``, with the number of the descriptor for
events and the number of its parent's process.
"""

import ctypes
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from repoagent.api.converters import ConversionJob, Converter
from repoagent.beneath.jail import apply
from repoagent.errors import ErrorCode, RepoAgentError
from repoagent.loader.converting.messages import BuildOrder, error_line, product_line, progress_line
from repoagent.loader.converting.registry import resolve
from repoagent.programs import end_with_parent

_PR_SET_DUMPABLE: Final = 4
_PROGRESS_SECONDS: Final = 0.05
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO: Final = "1000"
_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/proc/cpuinfo"),
    "/proc/self/cmdline",  # TensorFlow ends where it cannot read its own
)
"""What libraries read in a jail, beside their own directories."""
_LARGEST_FILE: Final = 2 << 30


class _Events:
    """The line to the server. Progress goes out at most twenty times a second, and the last of it."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "w", encoding="utf-8")
        self._next = 0.0

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        now = time.monotonic()
        if now < self._next and done != total:
            return
        self._next = now + _PROGRESS_SECONDS
        self.send(progress_line(done, total, what))

    def send(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()


def main(events_fd: int, parent: int) -> None:
    """Build what standard input orders; the process is to end afterwards."""
    end_with_parent(parent)
    order = BuildOrder.from_json(sys.stdin.read())
    _protect(order)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # to standard error: the last lines are shown
    events = _Events(events_fd)
    try:
        job = ConversionJob(Path(order.source), Path(order.target), order.settings, events.progress)
        converter = resolve(order.converter)
        if order.jail_bytes:
            _enter_jail(converter, order)
        product = converter.build(job)
        line = product_line(product)
    except RepoAgentError as error:
        line = error_line(error.code, error.message, "")
    except MemoryError:
        line = error_line(ErrorCode.INTERNAL, "there is not enough memory for the conversion", "")
    except BaseException as error:
        line = error_line(ErrorCode.INTERNAL, _text(error), "".join(traceback.format_exception(error)))
    events.send(line)


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # An exception may be of any class, and fail to be a text.
        return f"{type(error).__name__}, which has no text"


def _protect(order: BuildOrder) -> None:
    """No core dump of plaintext; and where memory runs out, this process goes rather than the server."""
    if order.confidential:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        return  # /proc/self belongs to root now
    try:
        _OOM_SCORE.write_text(_FIRST_TO_GO)
    except OSError:
        logging.getLogger(__name__).debug("the kernel does not take a score", exc_info=True)


def _enter_jail(converter: Converter, order: BuildOrder) -> None:
    """From here on this process may be the source's: nothing that it imports later can be changed by it."""
    prepare: Callable[[], None] = getattr(converter, "prepare", lambda: None)
    prepare()
    module = sys.modules[type(converter).__module__]
    top = sys.modules[module.__name__.partition(".")[0]]
    places = [*sys.modules["repoagent"].__path__, *getattr(top, "__path__", [os.path.dirname(module.__file__ or "")])]
    packages = [Path(place).resolve() for place in places if place]
    code = [*map(Path, sys.path), *packages, Path(sys.prefix), Path(sys.base_prefix)]
    inputs = [Path(order.source, name) for name in order.inputs]
    needed: Callable[[int], int] = getattr(converter, "memory_bytes", lambda _: order.jail_bytes)
    apply(
        [*code, *map(Path, _SYSTEM), *inputs],
        [Path(order.target), Path.cwd()],
        memory_bytes=min(order.jail_bytes, needed(sum(path.stat().st_size for path in inputs))),
        file_bytes=_LARGEST_FILE,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # libraries that fail in their own clean-up cannot take back what is done
