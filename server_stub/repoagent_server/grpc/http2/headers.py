"""Blocks of headers: read with hpack's decoder behind a cache, written without a table."""

from typing import Final
from urllib.parse import quote_from_bytes

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from repoagent_server.grpc.http2.frames import COMPRESSION_ERROR, ConnectionFault
from repoagent_server.grpc.http2.head import RequestHead, literal

MAX_LIST: Final = 1 << 14
"""Bytes of all headers of a request, once decompressed: gRPC's own limit in C."""
_MAX_KNOWN: Final = 64
_LONGEST_KNOWN: Final = 1 << 12
"""Bytes of headers that are remembered."""
_SIZE_UPDATES: Final = 2
_SAFE: Final = "".join(chr(char) for char in range(0x20, 0x7F) if char != ord("%"))


class HeaderReader:
    """Decodes the blocks of one connection, in their order.

    The same block means the same headers as long as the dynamic table is as it was. So a block that leaves the table as
    it is, is remembered until something changes the table.
    """

    __slots__ = ("_decoder", "_table", "known")

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_LIST)
        self._table = self._decoder.header_table = _CountedTable()
        self.known: dict[bytes, RequestHead] = {}
        """Good heads by their blocks. Look here first."""

    def read(self, block: bytes) -> RequestHead:
        """Decode a block that is not known.

        Raises:
            ConnectionFault: it cannot be decoded, so that no later one can be either.
        """
        changes = self._table.changes
        if _too_many_updates(block):
            raise ConnectionFault(COMPRESSION_ERROR, "too many updates of the table's size")
        try:
            fields = self._decoder.decode(block, raw=True)
        except (HPACKError, IndexError, ValueError):
            # Without the library's text: it quotes the client's bytes.
            raise ConnectionFault(COMPRESSION_ERROR, "headers cannot be decoded") from None
        head = RequestHead([(bytes(name), bytes(value)) for name, value in fields])
        if self._table.changes != changes:
            self.known.clear()
        elif not head.malformed and head.size <= _LONGEST_KNOWN:
            if len(self.known) >= _MAX_KNOWN:
                self.known.clear()
            self.known[bytes(block)] = head
        return head


class _CountedTable(HeaderTable):
    """Counts what changes it."""

    def __init__(self) -> None:
        self.changes = 0
        super().__init__()

    def add(self, name: bytes, value: bytes) -> None:
        was_empty = not self.dynamic_entries
        super().add(name, value)
        if self.dynamic_entries or not was_empty:  # a table of size 0 takes nothing in, whatever clients add
            self.changes += 1

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]


def _too_many_updates(block: bytes) -> bool:
    """RFC 7541, section 4.2, has use for two at most. The decoder takes any number, at 2 us each."""
    position = count = 0
    while position < len(block) and block[position] & 0xE0 == 0x20 and count <= _SIZE_UPDATES:
        count += 1
        longer = block[position] & 0x1F == 0x1F
        position += 1
        while longer and position < len(block):
            longer = block[position] >= 0x80
            position += 1
    return count > _SIZE_UPDATES


def status_fields(status: int, text: str) -> bytes:
    """``grpc-status``, and ``grpc-message`` as it travels: UTF-8 with all but printable ASCII escaped."""
    fields = literal(b"grpc-status", b"%d" % status)
    if text:
        escaped = quote_from_bytes(text.encode("utf-8", "replace"), safe=_SAFE)
        fields += literal(b"grpc-message", escaped.encode("ascii"))
    return fields
