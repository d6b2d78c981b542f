"""Memory that two processes share: blocks in sealed memory files that only their descriptors lead to.

Nothing of it has a name, so nothing is left behind however either side ends. Each side writes into an arena of its
own and reads through a mapping of the other's; a block goes back to its arena when the last array over it has gone.
"""

import errno
import fcntl
import mmap
import os
import resource
import sys
import threading
import weakref
from collections import deque
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from repoagent.limits import Limits
from repoagent.serving.requests.tensor import Array

_SHARE_OF_DESCRIPTORS: Final = 8
"""A segment takes one or two descriptors of the server, which needs others for its clients."""


class Allowance(NamedTuple):
    """Segments, and bytes in all of them."""

    segments: int
    bytes: int

    @classmethod
    def of(cls, limits: Limits) -> "Allowance":
        """What a process may make the server map, or keep."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            descriptors = sys.maxsize
        segments = max(1, min(limits.python_segments, descriptors // _SHARE_OF_DESCRIPTORS))
        return cls(segments, limits.python_shared_bytes)

    def with_margin(self) -> "Allowance":
        """What a side keeps to by itself. Messages on two sockets overtake each other: the other side may hear of new
        segments before it hears which ones have gone."""
        return Allowance(max(1, self.segments * 3 // 4), max(1, self.bytes * 3 // 4))

    def covers(self, segments: int, size: int) -> bool:
        """Whether there may be so many segments with so many bytes."""
        return segments <= self.segments and size <= self.bytes

    def exceeded(self) -> OSError:
        """The error of who would need more."""
        return OSError(
            errno.ENOMEM,
            f"more than {self.segments} segments or {self.bytes} bytes of shared memory are in use "
            f"({Limits.flag('python_segments')}, {Limits.flag('python_shared_bytes')})",
        )


UNLIMITED: Final = Allowance(sys.maxsize, sys.maxsize)


Memory = mmap.mmap | bytearray | Array
T = TypeVar("T")
Place = tuple[int, int, int]
"""Segment, offset and size of a block, as messages state it."""

_SEGMENT_BYTES: Final = 1 << 20
_SMALLEST_BLOCK: Final = 4096
_IDLE_BYTES: Final = 256 << 20
"""How much unused memory an arena keeps for the next request."""
_MANY_BLOCKS: Final = 32
_TAKEN_AT_ONCE: Final = 256
_MANY_BYTES: Final = 16 << 20
_BLOCK: Final = 512
"""What ``stat`` counts the memory of a file in."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ProtocolError(Exception):
    """The other side sent something that makes no sense: its code, or its memory, is broken."""


class ClosedError(Exception):
    """The arena has been closed."""


class Block(NamedTuple):
    """Memory to write into, and where the other side finds it."""

    place: Place
    memory: mmap.mmap


class _Segment:
    """One memory file, cut into blocks of one size."""

    __slots__ = ("block_bytes", "fd", "free", "memory", "number", "size", "used")

    def __init__(self, number: int, block_bytes: int) -> None:
        self.number = number
        self.block_bytes = block_bytes
        self.size = _segment_bytes(block_bytes)
        self.fd = sealed_file(self.size)
        try:
            self.memory = _map(self.fd, self.size)
        except BaseException:
            os.close(self.fd)
            raise
        self.free = list(range(0, self.size, block_bytes))
        self.used: set[int] = set()

    def close(self) -> None:
        os.close(self.fd)
        # The map goes with its last array; closing it under one would be an error.
        del self.memory


class Arena:
    """Where this side writes, within ``allowance``. Safe to use from any thread."""

    def __init__(self, idle_bytes: int = _IDLE_BYTES, allowance: Allowance = UNLIMITED) -> None:
        self._lock: Final = threading.Lock()
        self._limit: Final = idle_bytes
        self._allowance: Final = allowance
        self._segments: dict[int, _Segment] = {}
        self._by_size: dict[int, list[_Segment]] = {}
        self._next = 1
        self._closed = False
        self._dropped: deque[int] = deque()

    def allocate(self, size: int) -> Block:
        """A block of at least ``size`` bytes. Raises ``OSError`` if there is less, or less is allowed, and
        ``ClosedError`` if there is no memory at all any more."""
        block_bytes = _rounded(size)
        with self._lock:
            if self._closed:
                raise ClosedError
            segment = next((entry for entry in self._by_size.get(block_bytes, ()) if entry.free), None)
            segment = segment or self._add(block_bytes)
            offset = segment.free.pop()
            segment.used.add(offset)
            return Block((segment.number, offset, size), segment.memory)

    def release(self, segment_number: int, offset: int) -> None:
        """Take a block back that no one reads any more; raises ``ProtocolError`` if it was not given out."""
        with self._lock:
            segment = self._segments.get(segment_number)
            if segment is None or offset not in segment.used:
                raise ProtocolError(f"block {segment_number}:{offset} was released, which is not in use")
            segment.used.remove(offset)
            segment.free.append(offset)
            if not segment.used and self._idle() > self._limit:
                self._remove(segment)

    def dropped(self) -> list[int]:
        """Segments that have gone; the other side may forget them. What is returned once is not returned again."""
        return _taken(self._dropped) if self._dropped else []

    def put_back(self, dropped: list[int]) -> None:
        """The other side has not heard of segments that :meth:`dropped` returned."""
        self._dropped.extend(dropped)

    def file(self, segment_number: int) -> tuple[int, int]:
        """A new descriptor of a segment that has a block in use, and its size.

        The segment's own may be closed at any time, and its number be another file's: the other side may release the
        block before it has been given it.

        Raises:
            OSError: it has gone for that reason, or there is no descriptor left.
        """
        with self._lock:
            segment = self._segments.get(segment_number)
            if segment is None:
                raise OSError(errno.ESTALE, "a block was released before it was given")
            return os.dup(segment.fd), segment.size

    def numbers(self) -> set[int]:
        return set(self._segments)

    @property
    def total_bytes(self) -> int:
        """How much memory it holds, in use or not."""
        return sum(segment.size for segment in list(self._segments.values()))

    @property
    def used_blocks(self) -> int:
        """How many blocks someone still reads."""
        return sum(len(segment.used) for segment in list(self._segments.values()))

    def close(self) -> None:
        """Give all memory back; arrays over it stay valid."""
        with self._lock:
            self._closed = True
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()
            self._by_size.clear()

    def _add(self, block_bytes: int) -> _Segment:
        self._make_room(_segment_bytes(block_bytes))
        segment = _Segment(self._next, block_bytes)
        self._next += 1
        self._segments[segment.number] = segment
        self._by_size.setdefault(block_bytes, []).append(segment)
        return segment

    def _make_room(self, size: int) -> None:
        """Have a further segment of ``size`` bytes be allowed: those that nothing is in go first."""
        idle = [segment for segment in self._segments.values() if not segment.used]
        while not self._allowance.covers(len(self._segments) + 1, self.total_bytes + size):
            if not idle:
                raise self._allowance.exceeded()
            self._remove(idle.pop())

    def _idle(self) -> int:
        return sum(len(segment.free) * segment.block_bytes for segment in self._segments.values())

    def _remove(self, segment: _Segment) -> None:
        del self._segments[segment.number]
        self._by_size[segment.block_bytes].remove(segment)
        self._dropped.append(segment.number)
        segment.close()


class _Region(np.ndarray[Any, Any]):
    """The bytes of one block. A class of its own, because NumPy keeps it as the base of arrays over it."""


class Mapping:
    """Where this side reads: as much of the other side's memory as ``allowance``. Safe to use from any thread."""

    def __init__(self, allowance: Allowance = UNLIMITED) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        self._released: deque[Place] = deque()
        self._allowance: Final = allowance
        self._lock: Final = threading.Lock()
        self._mapped = 0
        """How many maps there are; also those that were forgotten, as long as there is an array over them."""
        self._mapped_bytes = 0
        self._unmapped: deque[int] = deque()
        """Sizes of maps that have gone since."""

    def open(self, segment_number: int, fd: int, size: int) -> None:
        """Map a segment of the other side; one that is known already is left alone. Takes ``fd`` over. Raises
        ``ProtocolError`` if it is smaller than was stated, or could become so while it is read; or nothing was stated;
        or there are too many."""
        try:
            if type(size) is not int or size <= 0:  # A map of 0 bytes would be one of the whole file.
                raise ProtocolError(f"a segment of {size!r} bytes cannot be mapped")
            if segment_number in self._maps:
                return
            # Reading beyond the end of a file that shrank would kill this process.
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or (status := os.fstat(fd)).st_size < size:
                raise ProtocolError(f"segment {segment_number} is not a sealed file of {size} bytes")
            if status.st_blocks * _BLOCK < size:  # Reading would fill the holes, with memory of this process.
                raise ProtocolError(f"segment {segment_number} has holes")
            self._maps[segment_number] = self._mapped_within_allowance(fd, size)
        finally:
            close_received(fd)

    def _mapped_within_allowance(self, fd: int, size: int) -> mmap.mmap:
        with self._lock:  # Not while memory is mapped: an event loop must not wait for that.
            self._count(1, size)
            while self._unmapped:
                self._count(-1, -self._unmapped.popleft())
            if not self._allowance.covers(self._mapped, self._mapped_bytes):
                self._unmapped.append(size)
                raise ProtocolError(str(self._allowance.exceeded()))
        try:
            memory = _map(fd, size)
        except BaseException:
            self._unmapped.append(size)
            raise
        weakref.finalize(memory, self._unmapped.append, size).atexit = False
        return memory

    def _count(self, maps: int, size: int) -> None:
        self._mapped += maps
        self._mapped_bytes += size

    def forget(self, segment_number: int) -> None:
        """The other side has no use for a segment any more; arrays over it stay valid."""
        self._maps.pop(segment_number, None)

    def view(self, place: Place) -> Array:
        """The bytes of a block. When the last array over them has gone, :meth:`released` has the block.
        ``ProtocolError`` if there is no such memory."""
        number, offset, size = place
        memory = self._maps.get(number)
        if memory is None or not 0 <= offset <= offset + size <= len(memory):  # NumPy does not look at all of this.
            raise ProtocolError(f"there is no block at {place}")
        region = np.ndarray.__new__(_Region, (size,), np.uint8, memory, offset)
        # The finalizer may run anywhere, also while this thread holds a lock: all it does is to append.
        weakref.finalize(region, self._released.append, place).atexit = False
        return region

    def released(self) -> list[Place]:
        """Blocks that no one here reads any more. What is returned once is not returned again."""
        return _taken(self._released) if self._released else []

    def put_back(self, released: list[Place]) -> None:
        """The other side has not heard of blocks that :meth:`released` returned."""
        self._released.extend(released)

    def should_send_releases(self) -> bool:
        """Whether :meth:`released` would give so much that the other side should hear of it soon."""
        waiting = list(self._released)
        return len(waiting) >= _MANY_BLOCKS or sum(size for _, _, size in waiting) >= _MANY_BYTES

    def close(self) -> None:
        """Let go of everything; arrays over it stay valid."""
        self._maps.clear()


def _taken(items: deque[T]) -> list[T]:
    """The first of ``items``, which other threads may add to and take from; not more than fit into a message."""
    taken: list[T] = []
    try:
        while items and len(taken) < _TAKEN_AT_ONCE:
            taken.append(items.popleft())
    except IndexError:
        pass
    return taken


def _rounded(size: int) -> int:
    """Sizes of blocks: few enough to be used again, close enough to waste little (an eighth at most)."""
    if size <= _SMALLEST_BLOCK:
        return _SMALLEST_BLOCK
    step = max(_SMALLEST_BLOCK, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def _segment_bytes(block_bytes: int) -> int:
    """The size of a segment of blocks of that size."""
    return max(1, _SEGMENT_BYTES // block_bytes) * block_bytes


def close_received(fd: int) -> None:
    """Close a descriptor that the other side has sent. What is no memory may take as long as that side wants, such as a
    socket that lingers: a thread waits for its end."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        threading.Thread(target=os.close, args=(fd,), name="repoagent-close", daemon=True).start()
    else:
        os.close(fd)


def sealed_file(size: int) -> int:
    """The descriptor of a memory file of zeros whose size no one can change."""
    fd = os.memfd_create("repoagent-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Reserved now: where memory is short this is an error, and a write into a hole would be a signal.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _map(fd: int, size: int) -> mmap.mmap:
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
