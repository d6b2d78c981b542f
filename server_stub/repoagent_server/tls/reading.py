"""What can be decrypted of what has come from a client."""

import ssl
from typing import Final, cast

_MOST: Final = 1 << 18
"""Bytes that are handed on at a time."""


def read_all(tls: ssl.SSLObject, incoming: ssl.MemoryBIO) -> tuple[bytes, bool]:
    """All that is there, up to a limit, and whether the client has ended its side.

    Raises:
        ssl.SSLError: the client broke the protocol.
    """
    pieces: list[bytes] = []
    size, ended = 0, False
    try:
        while size < _MOST and (incoming.pending or tls.pending()):
            piece = tls.read(_MOST)
            if not piece:
                ended = True
                break
            pieces.append(piece)
            size += len(piece)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLZeroReturnError:
        ended = True
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), ended


def read_into(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, memory: memoryview) -> tuple[int, bool]:
    """The same into ``memory``: how many bytes it got."""
    size, ended = 0, False
    try:
        while size < len(memory) and (incoming.pending or tls.pending()):
            count = tls.read(len(memory) - size, memory[size:])
            if not count:
                ended = True
                break
            size += cast("int", count)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLZeroReturnError:
        ended = True
    return size, ended
