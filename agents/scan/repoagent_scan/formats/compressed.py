"""Compressed data whose first bytes are not enough to know it, such as joblib's: they may be those of weights."""

import lzma
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import Format
from repoagent_scan.formats.pickles import looks_like_pickle

__all__ = ["format_inside"]

_PIECE: Final = 1 << 16
_MOST_READ: Final = 16 << 20
_MOST_OPENED: Final = 4 << 20
_MOST_MEMORY: Final = 64 << 20


class _Decompressor(Protocol):
    """Those of zlib and lzma."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def format_inside(data: Buffer, check_cancelled: Callable[[], None] = lambda: None) -> Format | None:
    """What ``data`` is to a program that decompresses it with zlib or LZMA; None if that fails.

    A program reads what it needs: what comes out before an error counts, and what does not end is not waited for.
    """
    head = data[:2]
    if len(head) < 2:
        return None
    found = None
    if head[0] & 0x0F == 8 and int.from_bytes(head, "big") % 31 == 0:
        found = _opened(zlib.decompressobj(), data, check_cancelled)
    # The format that knows no magic number: what it finds unlikely to be one, it refuses itself.
    return found or _opened(lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=_MOST_MEMORY), data, check_cancelled)


def _opened(decompressor: _Decompressor, data: Buffer, check_cancelled: Callable[[], None]) -> Format | None:
    opened = bytearray()
    for start in range(0, min(len(data), _MOST_READ), _PIECE):
        check_cancelled()
        try:
            opened += decompressor.decompress(data[start : start + _PIECE], _MOST_OPENED)
        except (zlib.error, lzma.LZMAError) as error:
            if "limit exceeded" in str(error):
                return Format.ARCHIVE
            return Format.PICKLE if looks_like_pickle(bytes(opened)) else None
        if decompressor.eof or len(opened) >= _MOST_OPENED:
            break
    if looks_like_pickle(bytes(opened)):
        return Format.PICKLE
    is_open = not decompressor.eof and len(data) <= _MOST_READ and len(opened) < _MOST_OPENED
    return None if is_open else Format.ARCHIVE
