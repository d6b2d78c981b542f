"""Models in zip archives: those of skops, whose types are listed, and of Keras."""

import io
import re
import zipfile
import zlib
from typing import Any, Final

from repoagent.api import read_json
from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError
from repoagent_scan.formats.npy import check_array, is_array

_SCHEMA: Final = "schema.json"
_ARRAY: Final = re.compile(r"[0-9]{1,20}\.npy", re.ASCII)
_KERAS: Final = frozenset({"metadata.json", "config.json", "model.weights.h5"})
_LARGEST: Final = 64 << 20
_MOST_MEMBERS: Final = 10_000
_MOST_VALUES: Final = 500_000
_MOST_TYPES: Final = 20
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of others, Python unpacks all of a piece at once, however little of it is asked for."""


def is_keras(data: Buffer) -> bool:
    """Whether ``data`` is an archive of these three members alone."""
    archive = _opened(data)
    return archive is not None and sorted(archive.namelist()) == sorted(_KERAS)


def skops_types(data: Buffer) -> list[str] | None:
    """The types that opening a file of skops makes, by name; None if it is something else.

    Such a file has a schema, and arrays without objects in them; a member that is more makes it another archive.
    """
    archive = _opened(data)
    if archive is None or archive.namelist().count(_SCHEMA) != 1:
        return None
    try:
        for member in archive.infolist():
            if member.filename == _SCHEMA:
                continue
            content = _content(archive, member)
            if not (_ARRAY.fullmatch(member.filename) and is_array(content) and check_array(content)):
                return None
        found: set[str] = set()
        pending: list[Any] = [read_json(_content(archive, archive.getinfo(_SCHEMA)), most_values=_MOST_VALUES)]
        while pending:
            one = pending.pop()
            if isinstance(one, dict):
                if "__class__" in one:
                    found.add(f"{one.get('__module__')}.{one['__class__']}")
                pending += one.values()
            elif isinstance(one, list):
                pending += one
    except (MalformedError, ValueError, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error):
        return None
    names = sorted(found, key=lambda name: (name.startswith(("builtins.", "numpy.")), name))
    return names[:_MOST_TYPES]


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """As much of a member as it claims to have: ``archive.read`` unpacks the rest, too, before it leaves it out."""
    with archive.open(member) as file:
        return file.read(member.file_size)


def _opened(data: Buffer) -> zipfile.ZipFile | None:
    """An archive that begins the file and is small, also once it is unpacked."""
    if data[:4] != b"PK\3\4" or len(data) > _LARGEST:
        return None
    content = data[:]
    if content.count(b"PK\1\2") > _MOST_MEMBERS:  # reading the list of a million takes half a minute
        return None
    try:
        members = (archive := zipfile.ZipFile(io.BytesIO(content))).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return None
    is_small = len(members) <= _MOST_MEMBERS and sum(one.file_size for one in members) <= _LARGEST
    # Members that share their bytes have them unpacked again and again.
    is_plain = sum(one.compress_size for one in members) <= len(content)
    return archive if is_small and is_plain and all(one.compress_type in _METHODS for one in members) else None
