"""The ready file: for scripts that start a server and want to know when, and where, it serves."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from repoagent.atomic_file import replace_file
from repoagent.errors import UnavailableError


def clear_ready_file(path: Path) -> None:
    """Remove what an earlier server left there, so that no one takes it for this one's.

    Raises:
        UnavailableError: the file will not be there when it is time, for it cannot be written.
    """
    with _faults(path), NamedTemporaryFile(dir=path.parent):
        path.unlink(missing_ok=True)


def write_ready_file(path: Path, addresses: Mapping[str, tuple[str, int]]) -> None:
    """Write ``{"pid": ..., "http": {"address": ..., "port": ...}, ...}``; the file appears whole or not at all.

    Raises:
        UnavailableError: it cannot be written.
    """
    document = {"pid": os.getpid(), **{name: {"address": a, "port": p} for name, (a, p) in addresses.items()}}
    with _faults(path):
        replace_file(path, json.dumps(document).encode() + b"\n")


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"cannot write the ready file {path}: {error.strerror}") from error
