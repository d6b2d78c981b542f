"""Pieces of answers to a socket: joined while that is cheaper than several writes."""

import asyncio
from collections.abc import Sequence
from typing import Final

JOIN_BELOW: Final = 1 << 16
"""Bytes. More than that is not copied once more."""


def write_pieces(transport: asyncio.WriteTransport, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
    """Write ``pieces``, at least one, in their order; how many bytes they are."""
    if len(pieces) == 1:
        transport.write(pieces[0])
        return len(pieces[0])
    size = sum(map(len, pieces))
    if size < JOIN_BELOW:
        transport.write(b"".join(pieces))
    else:
        transport.writelines(pieces)
    return size
