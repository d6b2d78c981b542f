"""Frames about the connection itself (RFC 9113, section 6): settings, pings, windows, resets, its end in two steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from repoagent_server.grpc.http2.frames import (
    ACK,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    INITIAL_WINDOW_SIZE,
    LARGEST_FRAME,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MOST,
    NO_ERROR,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    U32,
    WINDOW_UPDATE,
    ConnectionFault,
    StreamFault,
    frame,
    number_frame,
)
from repoagent_server.grpc.http2.headers import MAX_LIST
from repoagent_server.grpc.http2.sender import Sender

_LONG: Final = 7200.0
"""Seconds between pings of a connection without calls, where these are not permitted: gRPC's number."""


class Bucket:
    """Tokens, of which a frame takes one. They come back with time, and with the answers that the connection gives."""

    __slots__ = ("_answers", "_at", "_most", "_per_answer", "_rate", "_tokens")

    def __init__(self, most: int, rate: float, per_answer: int) -> None:
        self._most = self._tokens = float(most)
        self._rate = rate
        self._per_answer = per_answer
        self._at = 0.0
        self._answers = 0

    def take(self, now: float, answers: int, count: int = 1) -> bool:
        """Take ``count`` tokens; False if there are too few. ``answers`` counts those given so far."""
        earned = (now - self._at) * self._rate + (answers - self._answers) * self._per_answer
        self._tokens = min(self._most, self._tokens + earned) - count
        self._at, self._answers = now, answers
        return self._tokens >= 0


class PingGuard:
    """gRPC's rule for pings of clients: without an answer in between, they must leave a time between them."""

    __slots__ = ("_answers", "_last", "_seconds", "_strikes", "_strikes_allowed", "_without_calls")

    def __init__(self, seconds: float, strikes: int, without_calls: bool) -> None:
        """``strikes``: how many pings may come too early; 0 is no limit."""
        self._seconds = seconds
        self._strikes_allowed = strikes
        self._without_calls = without_calls
        self._strikes = 0
        self._answers = -1
        self._last = 0.0

    def came(self, now: float, answers: int, has_calls: bool) -> bool:
        """Whether the client may go on after this ping."""
        if answers != self._answers:
            self._answers, self._strikes, self._last = answers, 0, now
            return True
        seconds = self._seconds if has_calls or self._without_calls else max(self._seconds, _LONG)
        early = now < self._last + seconds
        self._last = now
        self._strikes += early
        return not self._strikes_allowed or self._strikes <= self._strikes_allowed


MAX_STREAMS: Final = 1024
STREAM_WINDOW: Final = 1 << 22
CONNECTION_WINDOW: Final = 1 << 24
MAX_FRAME: Final = 1 << 20

# Frames that bring nothing: a burst, then so many a second, and some for each frame of an answer.
_COSTS: Final = (4096, 512.0, 4)
# Calls that the client gives up: likewise; a client that takes as many answers as it gives calls up has no limit.
_RESETS: Final = (1000, 100.0, 1)
# Bytes of new headers, decompressed: those of all calls at once, then so many a second. A frame of an answer gives back
# as much as a call may have: clients that send a new token with each call, and wait for answers, have no limit.
_HEADERS: Final = (MAX_STREAMS * MAX_LIST, float(1 << 16), MAX_LIST)
_ENTRIES: Final = 64
"""Entries that a SETTINGS frame may have; RFC 9113 defines six."""
_PARTING: Final = b"parting."
_PING_BYTES: Final = 8
_PRIORITY_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Rules:
    """What clients may do. Times are in seconds."""

    ping_seconds: float = 300.0
    """Between pings without an answer in between."""
    ping_strikes: int = 2
    """How many may come sooner; 0 is no limit."""
    pings_without_calls: bool = False


class Control:
    """The life of a connection, and what its client may cost."""

    def __init__(self, sender: Sender, rules: Rules, clock: Callable[[], float]) -> None:
        self._sender = sender
        self._clock = clock
        self._costs = Bucket(*_COSTS)
        self._resets = Bucket(*_RESETS)
        self._new_headers = Bucket(*_HEADERS)
        self._pings = PingGuard(rules.ping_seconds, rules.ping_strikes, rules.pings_without_calls)
        self.handlers: Final[dict[int, Callable[[int, int, bytes], None]]] = {
            PRIORITY: self._priority,
            RST_STREAM: self._rst_stream,
            SETTINGS: self._settings,
            PUSH_PROMISE: self._push_promise,
            PING: self._ping,
            GOAWAY: self._goaway,
            WINDOW_UPDATE: self._window_update,
        }
        """By kind of frame; each is given flags, stream and payload, and raises ConnectionFault or StreamFault."""
        self.last = 0
        """The last stream that the client opened."""
        self.closed = False
        """Nothing is received any more."""
        self.parting = False
        """The client has been asked to open no more streams here."""
        self.parted = False
        """It opens none any more."""
        self._named: int | None = None
        """The last stream that is served, as the client knows it; a later GOAWAY must not name a higher one."""
        self.on_parted: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Announce what the client may send."""
        settings = (
            (MAX_CONCURRENT_STREAMS, MAX_STREAMS),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_FRAME_SIZE, MAX_FRAME),
            (MAX_HEADER_LIST_SIZE, MAX_LIST),
        )
        self._sender.out.append(frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in settings)))
        self._sender.out.append(number_frame(WINDOW_UPDATE, 0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    @property
    def unused(self) -> bool:
        """Whether the client has opened no stream yet."""
        return not self.last

    def ping(self) -> None:
        """Ask whether the client is there: whatever comes of it answers that."""
        self._sender.out.append(frame(PING, 0, 0, bytes(_PING_BYTES)))
        self._sender.touch()

    def part(self) -> None:
        """Ask the client to go elsewhere with new calls.

        Those that it has sent by then are served. The answer to a ping shows that it has heard.
        """
        if not self.parting and not self.closed:
            self.parting = True
            self._sender.out.append(frame(GOAWAY, 0, 0, END.pack(MOST, NO_ERROR)))
            self._sender.out.append(frame(PING, 0, 0, _PARTING))
            self._sender.touch()

    def part_now(self) -> None:
        """State which stream was the last; the client may try later ones elsewhere."""
        if not self.parted and not self.closed:
            self.parting = self.parted = True
            self._named = self.last
            self._sender.out.append(frame(GOAWAY, 0, 0, END.pack(self.last, NO_ERROR)))
            self._sender.touch()
            self.on_parted()

    def fail(self, code: int, text: str) -> None:
        """End the connection for a fault."""
        self.closed = self.parting = self.parted = True
        last = self.last if self._named is None else self._named
        self._sender.out.append(frame(GOAWAY, 0, 0, END.pack(last, code) + text.encode()))
        self.on_parted()

    def reset(self, number: int, code: int) -> None:
        """End a stream for a fault, which counts as a call that the client gives up: the call's work ends likewise.

        Raises:
            ConnectionFault: there have been too many; or it is idle, where RST_STREAM is not allowed.
        """
        if self.is_idle(number):
            raise ConnectionFault(code, "a frame that is not valid on an idle stream")
        stream = self._sender.streams.get(number)
        self._sender.out.append(number_frame(RST_STREAM, number, code))
        if stream is None or not stream.ended:
            self._sender.abandon(number)
        self._lose(number)
        self._charge_reset()

    def lost(self) -> None:
        """The client is gone."""
        self.closed = self.parted = True
        for number in list(self._sender.streams):
            self._lose(number)
        self.on_parted()

    def _lose(self, number: int) -> None:
        stream = self._sender.streams.get(number)
        if stream is not None:
            self._sender.forget(stream)
            call, stream.call = stream.call, None
            if call is not None:
                call.lost()

    def charge(self) -> None:
        """For frames that bring nothing."""
        if not self._costs.take(self._clock(), self._sender.answers):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames without a call")

    def _charge_reset(self) -> None:
        if not self._resets.take(self._clock(), self._sender.answers):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many calls given up")

    def charge_headers(self, size: int) -> None:
        if not self._new_headers.take(self._clock(), self._sender.answers, size):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many new headers")

    # Frames.

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if len(payload) > _ENTRIES * SETTING.size:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many settings")
        self.charge()
        if not flags & ACK:
            self._apply(payload)

    def _apply(self, payload: bytes) -> None:
        initial = self._sender.initial
        for name, value in SETTING.iter_unpack(payload):
            if name == ENABLE_PUSH and value > 1:
                raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
            if name == INITIAL_WINDOW_SIZE:
                initial = value
            elif name == MAX_FRAME_SIZE:
                if not DEFAULT_FRAME <= value <= LARGEST_FRAME:
                    raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
                self._sender.max_frame = value
        if initial > MOST:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        self._sender.out.append(frame(SETTINGS, ACK, 0))
        if initial != self._sender.initial:
            self._sender.change_windows(initial)

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PING of a wrong length")
        self.charge()
        if flags & ACK:
            if payload == _PARTING and self.parting:
                self.part_now()
            return
        if not self._pings.came(self._clock(), self._sender.answers, bool(self._sender.streams)):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too_many_pings")  # gRPC's clients know this text
        self._sender.out.append(frame(PING, ACK, 0, payload))

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != U32.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        if self.is_idle(number):
            raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        self.charge()
        more = U32.unpack(payload)[0] & MOST
        if number:
            self._sender.widen_stream(number, more)
        else:
            self._sender.widen(more)

    def _rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if not number or self.is_idle(number):
            raise ConnectionFault(PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        if len(payload) != U32.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        self._sender.abandoned.pop(number, None)
        if number in self._sender.streams:
            self._lose(number)
            self._charge_reset()
        else:
            self.charge()

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        if not number:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY without a stream")
        self.charge()
        if len(payload) != _PRIORITY_BYTES:
            raise StreamFault(FRAME_SIZE_ERROR)
        if U32.unpack_from(payload)[0] & MOST == number:
            raise StreamFault(PROTOCOL_ERROR)

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < END.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self.charge()

    def _push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise ConnectionFault(PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def is_idle(self, number: int) -> bool:
        """Whether it is a stream that the client has not opened."""
        return number > self.last or (bool(number) and not number & 1)
