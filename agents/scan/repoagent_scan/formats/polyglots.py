"""Formats that are not told by how a file begins: it may begin as another one that is accepted."""

import tarfile
from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import Format

__all__ = ["format_behind"]

_BLOCK: Final = 512
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_ZIP_END: Final = 66_000
"""The record at the end of a zip archive has at most 64 KiB of comment."""


def format_behind(data: Buffer) -> Format | None:
    """What ``data`` is to programs that do not look at its first bytes; None if it is nothing to them."""
    if data[:4] in {b"PK\3\4", b"PK\5\6"} or b"PK\5\6" in data[max(0, len(data) - _ZIP_END) :]:
        return _zip(data)
    if data[4:8] == b"ORTM":
        return Format.ORT
    if _is_tar(data[:_BLOCK]):
        return Format.ARCHIVE
    return Format.HDF5 if _is_hdf5(data) else None


def _zip(data: Buffer) -> Format:
    """PyTorch's files are archives with a pickle in them: their names say what they are."""
    tail = data[max(0, len(data) - (4 << 20)) :]
    return Format.PICKLE if b".pkl" in tail else Format.ARCHIVE


def _is_tar(block: bytes) -> bool:
    """A tar archive begins with the name of its first member. Old ones have a checksum and no mark."""
    if block[257:262] == b"ustar":
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_hdf5(data: Buffer) -> bool:
    """The signature lies at 0, 512, 1024, 2048, ...: anything may precede it."""
    offset = 0
    while offset < len(data):
        if data[offset : offset + len(_HDF5)] == _HDF5:
            return True
        offset = offset * 2 or _BLOCK
    return False
