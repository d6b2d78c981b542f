"""Packets of a Unix socket: the text in them, and the descriptors that they bring along."""

import array
import errno
import json
import socket
from _json import make_encoder
from collections.abc import Sequence
from typing import Any, Final

from repoagent.nested_text import DEEPEST, check_depth

# What json.JSONEncoder makes again for each text, which takes longer than most texts do. It does not look for circles,
# which would take half of the time.
_pieces: Final = make_encoder(
    None, json.JSONEncoder().default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True
)
_decode: Final = json.JSONDecoder().raw_decode
# Numbers, as the members of an enumeration take microseconds to combine.
_NO_SIGNAL: Final = int(socket.MSG_NOSIGNAL)
DONT_WAIT: Final = int(socket.MSG_DONTWAIT)
_GONE: Final = frozenset({errno.EBADF, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE})


def is_gone(error: OSError) -> bool:
    """Whether ``error`` means that the other side has gone. Else the packet is what cannot be sent, being too long for
    the socket or bringing more descriptors than may be on their way."""
    return error.errno in _GONE


def send_packet(sock: socket.socket, parts: list[Any], descriptors: Sequence[int], flags: int) -> None:
    """Send ``parts`` as one packet.

    Raises:
        OSError: it cannot be sent; BlockingIOError: not now, with ``DONT_WAIT``.
    """
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg(parts, ancillary, flags | _NO_SIGNAL)


def encoded(body: Any) -> str:
    """The text of a body.

    Raises:
        TypeError, ValueError: it is not made of plain values.
    """
    try:
        return "".join(_pieces(body, 0))
    except RecursionError:
        raise ValueError("a body leads in a circle, or is nested too deeply") from None


def decoded(text: str) -> Any:
    """The body of a text.

    Raises:
        ValueError: it is not that of one body, or is nested too deeply.
    """
    if text.count("[") + text.count("{") > DEEPEST:
        check_depth(text)
    # json.loads looks for white space around the value as well: a third of its time for a small one.
    value, end = _decode(text)
    if end != len(text):
        raise ValueError("there is something behind the body")
    return value


def descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """What came along with a packet."""
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return received.tolist()
