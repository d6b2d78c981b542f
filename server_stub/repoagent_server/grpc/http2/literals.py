"""Fields of headers without a table."""

__all__ = ["literal"]


def literal(name: bytes, value: bytes) -> bytes:
    """A header that stands in no table and goes into none: right whatever the client's table is."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    """RFC 7541, section 5.1, with a prefix of seven bits."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,))
    out = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
