"""The memory that a server holds for its clients, over all protocols: one reserve, of which every message takes.

These count: requests that are not complete, and decompressed ones. Long requests, until the last tensor that is a view
of them is gone. Answers that clients have not taken.
"""

import mmap
import zlib
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import finalize

from repoagent.errors import UnavailableError
from repoagent.limits import Limits

HELD_FLAG: Final = Limits.flag("held_bytes")
WORTH_COUNTING: Final = 1 << 16
"""Bytes of a whole message from which on it is counted for as long as it is in memory."""
_SHARE: Final = 4
_UNREAD: Final = 8
"""Of the reserve, one part in so many is the most that answers hold which their clients have not taken."""
_GROWTH: Final = 16
_SMALL: Final = 1 << 12
"""Bytes of a message that may also have the sixteenth beyond the limit: probes are answered while others fill it."""
_LITTLE: Final = 1 << 18
_AHEAD: Final = 1 << 25
"""Bytes of answers that may wait for any client, and those of a stream in a burst if the reserve has room."""
_ALIGNMENT: Final = 64
MAPPED_PAGE: Final = 1 << 21
"""Bytes of the pages that large bodies have."""
_GROWN: Final = 1 << 19
"""Bytes from which on a body that grows has pages of its own. An allocator keeps what is freed, in the arena of each
thread: a server would stay as large as all of them together ever were."""
_FIRST_STEP: Final = 1 << 8
_IN: Final = 1 << 16
_OUT: Final = 1 << 16
"""Bytes that are given to zlib at first, at a time, and that it may make of them before they are counted."""


class Memory(bytearray):
    """Bytes that are counted until they are gone: see :meth:`Reserve.hold`."""

    __slots__ = ("__weakref__",)

    def takes(self, more: int = 0) -> int:
        return len(self) + more


def _mapped(size: int) -> mmap.mmap:
    """Zeros that go back to the system with their last view. They take pages of 2 MiB once these are touched."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # a fault for every 4 KiB would take longer than to receive them
    return memory


class GrowingBody:
    """A body whose length is not known before its end, in one piece of memory that is not copied once it is long."""

    __slots__ = ("__weakref__", "_end", "_memory", "_start")

    def __init__(self, unaligned: int = 0) -> None:
        """What follows the first ``unaligned`` bytes is aligned for tensors."""
        self._start = self._end = -unaligned % _ALIGNMENT
        self._memory: Memory | mmap.mmap = Memory(self._start)

    def __len__(self) -> int:
        return self._end - self._start

    def takes(self, more: int = 0) -> int:
        """How many bytes of memory are used, or will be with ``more`` of the body."""
        end = self._end + more
        return end if end < _GROWN else -(-end // MAPPED_PAGE) * MAPPED_PAGE

    def extend(self, piece: bytes) -> None:
        """More of it has come."""
        start, self._end = self._end, self._end + len(piece)
        memory = self._memory
        if isinstance(memory, Memory):
            if self._end < _GROWN:
                memory += piece
                return
            self._memory = _mapped(max(MAPPED_PAGE, 2 * self._end))
            self._memory[:start] = memory
            memory = self._memory
        elif self._end > len(memory):
            memory.resize(2 * self._end)
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[start : self._end] = piece

    def whole(self, hold: "Hold") -> memoryview:
        """All of it; ``hold`` leaves what it counts to the memory, which does not grow any more."""
        view = memoryview(self._memory)[self._start : self._end]
        hold.hand_over(hold.size, self._memory)
        return view


class Reserve:
    """Used by the threads of all front ends. One message may be larger than the limit while the others hold little."""

    def __init__(self, limit: int, *, part: bool = False) -> None:
        self.limit = limit
        self._small = min(_SMALL, limit >> 12)
        self.refused = 0
        """How often there was no room."""
        self._taken = 0
        self._taking = Lock()
        self._returned: deque[int] = deque()
        self.unread = self if part else Reserve(limit // _UNREAD, part=True)
        """The part of it that is for answers which clients have not taken."""

    @property
    def held(self) -> int:
        """How many bytes are held."""
        with self._taking:
            return self._now()

    def _now(self) -> int:
        returned = self._returned
        while returned:
            self._taken -= returned.popleft()
        return self._taken

    def take(self, own: int, more: int) -> bool:
        """Hold ``more`` bytes for a message that has ``own`` already; False, and nothing is held, if it is too much."""
        with self._taking:
            held = self._now()
            room = self.limit + (self.limit // _GROWTH if own + more <= self._small else 0)
            if held + more > room and held - own > self.limit // _SHARE:
                self.refused += 1
                return False
            self._taken = held + more
            return True

    def give(self, size: int) -> None:
        """Hold ``size`` bytes less. Takes no lock: the garbage collector calls this, wherever a thread is."""
        self._returned.append(size)

    @property
    def turned_away(self) -> int:
        """How often there was no room, for a message or a stream that runs ahead."""
        return self.refused + (self.unread.refused if self.unread is not self else 0)

    def hold_unread(self) -> "Unread":
        """What the answers hold that one client has not taken."""
        return Unread(self)

    def hold(self, memory: object = None) -> "Hold":
        """What a message is to hold; with ``memory``, until nothing refers to that any more."""
        hold = Hold(self)
        if memory is not None:
            finalize(memory, hold.release).atexit = False
        return hold


class Hold:
    """What one message, or one connection, holds."""

    __slots__ = ("_reserve", "_seen", "size")

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._seen = 0, reserve.refused
        self.size = 0

    def resize(self, size: int) -> bool:
        """Hold ``size`` bytes; False, and as many as before, if it is too much."""
        more = size - self.size
        if more > 0 and not self._reserve.take(self.size, more):
            return False
        if more < 0:
            self._reserve.give(-more)
        self.size = size
        return True

    def lags(self, filled: int | None = None) -> bool:
        """Whether, since the last call, there was no room for another, and this has grown by less than a sixteenth.

        A request of which a byte comes now and then would keep its memory forever. ``filled`` is how much of what is
        held has come, all of it by default.
        """
        size, refused = self._seen
        now = self.size if filled is None else min(filled, self.size)
        self._seen = now, self._reserve.refused
        return 0 < size <= now < size + size / _GROWTH and self._reserve.refused != refused

    def hand_over(self, size: int, memory: object) -> None:
        """Leave ``size`` of the bytes to ``memory``, to be held until nothing refers to that any more."""
        self.size -= size
        finalize(memory, self._reserve.give, size).atexit = False

    def release(self) -> None:
        """Hold nothing. Twice is once."""
        if self.size:
            self.resize(0)


class Unread(Hold):
    """What the answers hold that one client has not taken. Streams that run ahead have a part of the reserve."""

    __slots__ = ("_ahead",)

    def __init__(self, reserve: Reserve) -> None:
        super().__init__(reserve)
        self._ahead = 0

    def resize(self, size: int) -> bool:
        if size < self._ahead:
            self._run_ahead(size)
        return super().resize(size)

    def keeps_up(self, unread: int) -> bool:
        """Count the answers of a stream that its client has not taken; False if it should not go on."""
        counted = unread if unread > _LITTLE else 0
        return counted <= _AHEAD and self._run_ahead(counted) and self.resize(counted)

    def _run_ahead(self, size: int) -> bool:
        more = size - self._ahead
        if more > 0 and not self._reserve.unread.take(self._ahead, more):
            return False
        if more < 0:
            self._reserve.unread.give(-more)
        self._ahead = size
        return True


class Uptake:
    """How fast one client takes its answers."""

    __slots__ = ("_reserve", "_seen")

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._seen = 0, 0, reserve.turned_away

    def lags(self, taken: int, unread: int) -> bool:
        """Whether, since the last call, there was no room for another, and the client has taken less than a sixteenth
        of what was unread then.

        One that takes a byte now and then would keep its answer in memory forever. It has ``taken`` so many bytes in
        all; so many of its answers are in memory and ``unread``.
        """
        before, waited, turned_away = self._seen
        self._seen = taken, unread, self._reserve.turned_away
        return self._reserve.turned_away != turned_away and taken - before < waited / _GROWTH


def too_much() -> UnavailableError:
    """The refusal of a message for which the reserve has no room."""
    return UnavailableError(f"too much memory is held for requests and answers ({HELD_FLAG}); try again later")


def inflate(
    worker: "zlib._Decompress",
    data: memoryview,
    into: Memory | GrowingBody,
    hold: Hold,
    limit: int,
    too_large: Callable[[], Exception],
) -> int:
    """Decompress ``data`` to its end or that of its stream; how many of its bytes that took.

    ``into`` grows by steps, and ``hold`` with it, before there is more.

    Raises:
        Exception: that of ``too_large``: ``into`` would have more than ``limit`` bytes; -1 is no limit.
        UnavailableError: the reserve has no room.
        zlib.error: the data are damaged.
    """
    position, step = 0, _FIRST_STEP
    while position < len(data) and not worker.eof:
        piece: memoryview | bytes = data[position : position + step]
        position += len(piece)
        made = b""
        while (piece or len(made) == _OUT) and not worker.eof:
            made = worker.decompress(piece, _OUT)
            piece = worker.unconsumed_tail
            if 0 <= limit < len(into) + len(made):
                raise too_large()  # made here: one in this frame would be a cycle, and hold what is counted
            if not hold.resize(into.takes(len(made))):
                raise too_much()
            into.extend(made)
        step = min(2 * step, _IN)  # small streams in a row do not cost a copy each of all that follows
    return position - len(worker.unused_data)
