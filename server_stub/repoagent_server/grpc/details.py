"""The text of a status, in a length that clients take."""

from typing import Final

__all__ = ["details"]

_ROOM: Final = 6000
"""Bytes on the wire. It travels in the trailers, of which gRPC refuses some from 8 KiB on and all from 16 KiB."""
_SURELY_SHORT: Final = _ROOM // 12
"""Characters of at most four bytes, of three characters each where they are escaped."""
_CUT: Final = " ... (cut)"


def details(message: str) -> str:
    """``message``, without its end if it is so long that the client would be told of that instead of the error."""
    if len(message) <= _SURELY_SHORT:
        return message
    size = 0
    for position, char in enumerate(message):
        plain = " " <= char <= "~" and char != "%"
        size += 1 if plain else 3 * len(char.encode("utf-8", "surrogatepass"))
        if size > _ROOM:
            return message[:position] + _CUT
    return message
