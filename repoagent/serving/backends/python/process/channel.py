"""Messages between the server and a child: a kind, a body of plain values, and tensors in shared memory beside it.

A message is one packet of a Unix socket, so a side that dies leaves whole messages only. The body is JSON: nothing
that a child sends can make the server run anything. Small tensors travel in the packet, larger ones in a block of the
sender's arena; the packet that first mentions a segment brings its descriptor along.
"""

import array
import contextlib
import enum
import errno
import json
import os
import select
import socket
import struct
import sys
import threading
from _json import make_encoder
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from repoagent.errors import InternalError
from repoagent.limits import Limits
from repoagent.nested_text import DEEPEST, check_depth
from repoagent.serving.backends.python.process.codec import Packer
from repoagent.serving.backends.python.process.memory import (
    Arena,
    Block,
    ClosedError,
    Mapping,
    Memory,
    Place,
    ProtocolError,
    close_received,
)
from repoagent.serving.requests.tensor import Array

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


def encoded(body: Any) -> str:
    """The text of a body; raises ``TypeError`` or ``ValueError`` if it is not made of plain values."""
    try:
        return "".join(_pieces(body, 0))
    except RecursionError:
        raise ValueError("a body leads in a circle, or is nested too deeply") from None


def decoded(text: str) -> Any:
    """The body of a text; raises ``ValueError`` if it is not that of one body, or is nested too deeply."""
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


_HEAD: Final = struct.Struct("<BBI")
_PACKET_BYTES: Final = 64 << 10
_TEXT_BYTES: Final = 32 << 10
_INLINE_BYTES: Final = 16 << 10
"""What is copied through the kernel in less time than keeping account of a block takes."""
_BRIEF_BYTES: Final = 64 << 10
_BRIEF_MAPPING: Final = 4 << 20
"""Up to here a message is brief: taking it in takes no longer than a small request over the network."""
_REMEMBERED: Final = 1024
# A number, as the members of an enumeration take microseconds to combine.
_TRUNCATED: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_MOST_DESCRIPTORS: Final = 253
"""The kernel's bound. With room for fewer it would close the others here, which may take its time."""
_DESCRIPTOR_BYTES: Final = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_MOST_VALUES: Final = 4_000_000
"""In a long body. The parser lets no other thread run, and each value takes many times its text."""


class Kind(enum.IntEnum):
    """What a message is about. The child answers each of the first four on the channel that it came on."""

    COMPLETE = 1
    """Complete a configuration."""
    INITIALIZE = 2
    EXECUTE = 3
    FINALIZE = 4
    DONE = 5
    FAILED = 6
    RESPONSE = 7
    """One response of a decoupled model."""
    CALL = 8
    """A request that the model makes of another one."""
    CALL_RESPONSE = 9
    ASK = 10
    """A question to the server that is answered once."""
    ANSWER = 11
    LOG = 12
    METRIC = 13
    RELEASE = 14
    """Nothing but blocks that may be used again."""
    READY = 15
    """Whether the model is ready: a question to the child, and its answer."""
    RETURN = 16
    """Give back what was sent ahead and has not been begun, up to the request of that number.

    It may overtake the message that brings it.
    """
    RETURNED = 17
    """What that was: nothing of it is going to be executed."""


class PeerGoneError(Exception):
    """The other side has gone."""


class UndeliveredError(PeerGoneError):
    """It had gone before the message was sent: no one has seen any of it."""


class LongMessageError(Exception):
    """There is a message that takes a while to read."""


class Message(NamedTuple):
    """What arrived. ``payload`` is the memory that the tensors of ``body`` lie in."""

    kind: int
    body: Any
    payload: Memory


class Channel:
    """One of the sockets between two processes. Any thread may send, one at a time may receive.

    A message's body may have ``longest_sent`` bytes here, and ``longest_received`` when it comes.
    """

    def __init__(
        self,
        sock: socket.socket,
        arena: Arena,
        mapping: Mapping,
        *,
        longest_sent: int = sys.maxsize,
        longest_received: int = sys.maxsize,
    ) -> None:
        self._longest_sent: Final = longest_sent
        self._longest_received: Final = longest_received
        self._socket: Final = sock
        self._arena: Final = arena
        self._mapping: Final = mapping
        self._lock: Final = threading.Lock()
        self._announced: set[int] = set()
        self._buffer: Final = bytearray(_PACKET_BYTES)
        self._view: Final = memoryview(self._buffer)
        self._kept: tuple[int, list[int]] | None = None
        """Length and descriptors of a message that lies in the buffer and has not been read."""
        self.long_bytes = 0
        """The length of the body of the last message that came, if it is a long one."""
        self.sent = 0
        """How many messages have been sent."""
        self.forked = False
        """Whether this process only has a copy of the channel, in which it must not send anything."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: Kind, body: Any = None, payload: Packer | None = None) -> None:
        """Send one message.

        Raises:
            PeerGoneError: there is no one to receive it.
            OSError: there is no memory for its tensors, the body is too long, or the kernel does not take it.
            TypeError, ValueError: the body is not made of plain values.
            InternalError: this is a fork of the process that the channel belongs to.
        """
        if self.forked:
            raise InternalError(
                "a process that the model has forked cannot call the server: call it in the model's own process"
            )
        blocks: list[Place] = []
        try:
            place, inline = self._place(payload, blocks)
            with self._lock:
                self._send(kind, body, place, inline, blocks)
        except BaseException:
            for number, offset, _ in blocks:  # No message has named them.
                with contextlib.suppress(ProtocolError):  # It has been closed.
                    self._arena.release(number, offset)
            raise

    def _send(self, kind: Kind, body: Any, place: Place | None, inline: bytearray, blocks: list[Place]) -> None:
        """Send a message whose tensors are written, in ``blocks`` or ``inline``. Holds the lock."""
        news = released, dropped = self._mapping.released(), self._arena.dropped()
        opened: list[tuple[int, int]] = []
        descriptors: list[int] = []
        try:
            text = encoded([body, place, *news, opened]).encode()
            spilled = len(text) > _TEXT_BYTES
            if spilled:
                body, place = None, self._spill(encoded([body, place]).encode(), blocks)
            if blocks:
                for number in {block[0] for block in blocks} - self._announced:
                    descriptor, size = self._arena.file(number)
                    descriptors.append(descriptor)
                    opened.append((number, size))
            if spilled or opened:
                text = encoded([body, place, *news, opened]).encode()
            self._transmit([_HEAD.pack(kind, spilled, len(text)), text, inline], descriptors)
        except BaseException:
            self._mapping.put_back(released)
            self._arena.put_back(dropped)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if opened:
            self._announced.update(number for number, _ in opened)
            if len(self._announced) > _REMEMBERED:
                self._announced &= self._arena.numbers()
        self.sent += 1

    def receive(self, flags: int = 0, *, brief: bool = False) -> Message | None:
        """The next message, or None if the other side has gone.

        Raises:
            ProtocolError: it makes no sense.
            BlockingIOError: there is none, with ``MSG_DONTWAIT``.
            LongMessageError: it takes a while to read, with ``brief``; it is still the next one.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            try:
                length, ancillary, seen, _ = self._socket.recvmsg_into([self._buffer], _DESCRIPTOR_BYTES, flags)
            except BlockingIOError:
                raise
            except OSError:
                return None
            if not length:
                return None
            descriptors = descriptors_of(ancillary) if ancillary else []
        else:
            (length, descriptors), seen = kept, 0
        try:
            if seen & _TRUNCATED:
                raise ProtocolError("a message is too long")
            return self._read(length, descriptors, brief=brief)
        except LongMessageError:
            self._kept, descriptors = (length, descriptors), []
            raise
        except ProtocolError:
            raise
        except Exception as error:  # There is no end of what can be wrong: numbers without end, lists in lists.
            raise ProtocolError(f"a message cannot be read: {type(error).__name__}: {error}") from error
        finally:
            for descriptor in descriptors:
                close_received(descriptor)

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive, or becomes within ``seconds``; the end counts."""
        if self._kept is not None:
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def send_releases(self) -> None:
        """Send many blocks that no one reads any more back by themselves: no other message may come."""
        if self._mapping.should_send_releases():
            self.send(Kind.RELEASE)

    def shutdown(self) -> None:
        """Let no one send or receive any more; a caller that waits for a message learns that there is none."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; no one may be receiving."""
        kept, self._kept = self._kept, None
        for descriptor in kept[1] if kept is not None else ():
            os.close(descriptor)
        with self._lock:
            self._socket.close()

    def _transmit(self, parts: list[Any], descriptors: Sequence[int]) -> None:
        self._send_packet(parts, descriptors, 0)

    def _send_packet(self, parts: list[Any], descriptors: Sequence[int], flags: int) -> None:
        """Send ``parts`` as one packet; ``BlockingIOError`` if that is impossible now, with ``DONT_WAIT``."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg(parts, ancillary, flags | _NO_SIGNAL)
        except OSError as error:
            if error.errno in _GONE:  # Else the packet is what cannot be sent.
                raise UndeliveredError(str(error)) from error
            raise

    def _place(self, payload: Packer | None, blocks: list[Place]) -> tuple[Place | None, bytearray]:
        """Write tensors where the other side will read them: shared memory, which is added to ``blocks``, or the packet
        if they are small."""
        inline = bytearray()
        if payload is None or not payload.size:
            return None, inline
        if payload.size <= _INLINE_BYTES:
            inline = bytearray(payload.size)
            payload.write(inline, 0)
            return None, inline
        block = self._allocate(payload.size, blocks)
        payload.write(block.memory, block.place[1])
        return block.place, inline

    def _allocate(self, size: int, blocks: list[Place]) -> Block:
        try:
            block = self._arena.allocate(size)
        except ClosedError as error:
            raise UndeliveredError("the connection has ended") from error
        blocks.append(block.place)
        return block

    def _spill(self, content: bytes, blocks: list[Place]) -> Place:
        """Put a long body into a block of its own."""
        if len(content) > self._longest_sent:
            raise OSError(errno.EMSGSIZE, _too_long(len(content), self._longest_sent))
        block = self._allocate(len(content), blocks)
        start = block.place[1]
        block.memory[start : start + len(content)] = content
        return block.place

    def _read(self, length: int, descriptors: list[int], *, brief: bool) -> Message:
        kind, spilled, text_length = _HEAD.unpack_from(self._buffer)
        end = _HEAD.size + text_length
        if end > length:  # Behind it lies what came before.
            raise ProtocolError("a message is cut off")
        if brief and spilled:
            raise LongMessageError
        body, place, released, dropped, opened = decoded(str(self._view[_HEAD.size : end], "ascii"))
        if brief and (place is not None or opened) and not _is_brief(place, opened):
            raise LongMessageError
        for number, size in opened:
            self._mapping.open(number, descriptors.pop(0), size)
        if descriptors:
            raise ProtocolError("there are descriptors that nothing names")
        for number in dropped:
            self._mapping.forget(number)
        for number, offset, _ in released:
            self._arena.release(number, offset)
        self.long_bytes = 0
        if spilled:
            body, place = self._read_long(self._mapping.view(place))
        if place is not None:
            return Message(kind, body, self._mapping.view(place))
        return Message(kind, body, bytearray(self._view[end:length]))

    def _read_long(self, content: Array) -> Any:
        """Body and place of a message that lies in ``content``."""
        self.long_bytes = len(content)
        if len(content) > self._longest_received:
            raise ProtocolError(_too_long(len(content), self._longest_received))
        text = str(content.data, "ascii")
        if sum(map(text.count, ",[{")) > _MOST_VALUES:
            raise ProtocolError(f"a message has more than {_MOST_VALUES} values")
        return decoded(text)


def _too_long(length: int, longest: int) -> str:
    return (
        f"a message of {length} bytes, not counting tensors, is longer than {longest} "
        f"({Limits.flag('python_message_bytes')})"
    )


def _is_brief(place: list[int] | None, opened: list[list[int]]) -> bool:
    """Whether the tensors at ``place`` are small, and no large memory has to be mapped for them."""
    if place is not None and place[2] > _BRIEF_BYTES:
        return False
    return not opened or (min(size for _, size in opened) > 0 and sum(size for _, size in opened) <= _BRIEF_MAPPING)
