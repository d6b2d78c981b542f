"""Models in zip archives: those of skops, whose types are listed, and of Keras."""

import io
import re
from typing import Any, Final

from repoagent.api import Archive, RepoAgentError, read_json
from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError
from repoagent_scan.formats.npy import check_array, is_array

_SCHEMA: Final = "schema.json"
_ARRAY: Final = re.compile(r"[0-9]{1,20}\.npy", re.ASCII)
_KERAS: Final = frozenset({"metadata.json", "config.json", "model.weights.h5"})
_LARGEST: Final = 64 << 20
_MOST_VALUES: Final = 500_000
_MOST_TYPES: Final = 20


def is_keras(data: Buffer) -> bool:
    """Whether ``data`` is an archive of these three members alone."""
    archive = _opened(data)
    return archive is not None and {*archive.names} == _KERAS


def skops_types(data: Buffer) -> list[str] | None:
    """The types that opening a file of skops makes, by name; None if it is something else.

    Such a file has a schema, and arrays without objects in them; a member that is more makes it another archive.
    """
    archive = _opened(data)
    if archive is None:
        return None
    try:
        pending: list[Any] = [read_json(archive.read(_SCHEMA), most_values=_MOST_VALUES)]
        for name in {*archive.names} - {_SCHEMA}:
            content = archive.read(name)
            if not (_ARRAY.fullmatch(name) and is_array(content) and check_array(content)):
                return None
        found: set[str] = set()
        while pending:
            one = pending.pop()
            if isinstance(one, dict):
                if "__class__" in one:
                    found.add(f"{one.get('__module__')}.{one['__class__']}")
                pending += one.values()
            elif isinstance(one, list):
                pending += one
    except (MalformedError, RepoAgentError, ValueError):
        return None
    names = sorted(found, key=lambda name: (name.startswith(("builtins.", "numpy.")), name))
    return names[:_MOST_TYPES]


def _opened(data: Buffer) -> Archive | None:
    """An archive that begins the file and is small, also once it is unpacked."""
    if data[:4] != b"PK\3\4" or len(data) > _LARGEST:
        return None
    try:
        return Archive(io.BytesIO(data[:]), _LARGEST)
    except RepoAgentError:
        return None
