"""HTTP/2 frames (RFC 9113, sections 4 to 7): their numbers, how they are written, and what ends a connection."""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
LARGEST_FRAME: Final = (1 << 24) - 1
MOST: Final = (1 << 31) - 1
"""The largest stream identifier, and the largest window."""

FRAME_HEAD: Final = struct.Struct(">IBI")
"""Length and type in one number, flags, stream."""
HEAD_BYTES: Final = FRAME_HEAD.size
U32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
END: Final = struct.Struct(">II")


class ConnectionFault(Exception):
    """The client has broken the protocol in a way that ends the connection. The text goes into GOAWAY."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The client has broken the protocol in a way that ends one stream."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """A frame that holds a number: RST_STREAM with its code, WINDOW_UPDATE with its bytes."""
    return FRAME_HEAD.pack(4 << 8 | kind, 0, stream) + U32.pack(number)
