"""The stand-in's device: memory of the host, streams that work when somebody waits."""

import ctypes
import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from repoagent.engines.protocol import Bytes
from repoagent.errors import InternalError, RepoAgentError, UnavailableError

ALIGNMENT: Final = 256
"""Of every address on the device that TensorRT is given."""
_POISON: Final = 0xCD
"""What new memory is filled with, so that a read before the first write shows."""

Work = Callable[[], None]


def view(address: int, size: int) -> Bytes:
    """The bytes at an address of this process."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class StandInStream:
    """Work in its order, done when an event on it, or it itself, is waited for."""

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock
        self._work: deque[Work] = deque()
        self._done = 0
        self._captured: list[Work] | None = None
        self.failure: RepoAgentError | None = None

    @property
    def handle(self) -> int:
        return id(self)

    @property
    def length(self) -> int:
        """How much work was ever enqueued."""
        return self._done + len(self._work)

    @property
    def capturing(self) -> bool:
        """Whether work is captured instead of done."""
        return self._captured is not None

    def enqueue(self, work: Work) -> None:
        """Do ``work`` later, or capture it."""
        (self._work if self._captured is None else self._captured).append(work)

    def run(self, until: int) -> None:
        """Do the work up to a length."""
        with self._lock:
            while self._done < until:
                work = self._work.popleft()
                self._done += 1
                try:
                    work()
                except RepoAgentError as error:
                    self.failure = self.failure or error
                    raise

    def wait_for(self, event: "StandInEvent") -> None:
        self.enqueue(event.waiting())

    def synchronize(self) -> None:
        self.run(self.length)

    def begin_capture(self) -> None:
        """What comes now is captured."""
        self._captured = []

    def end_capture(self) -> list[Work]:
        """What was captured."""
        captured, self._captured = self._captured, None
        if captured is None:
            raise InternalError("the stand-in's stream was not capturing")
        return captured

    def close(self) -> None:
        self._work.clear()
        self._done = 0


class StandInEvent:
    """A place in a stream."""

    def __init__(self) -> None:
        self._stream: StandInStream | None = None
        self._place = 0

    def record(self, stream: StandInStream) -> None:
        self._stream, self._place = stream, stream.length

    def waiting(self) -> Work:
        """What waits for the place as it is now."""
        stream, place = self._stream, self._place
        return (lambda: None) if stream is None else (lambda: stream.run(place))

    def wait(self) -> None:
        if self._stream is not None:
            self._stream.run(self._place)

    def close(self) -> None:
        self._stream = None


class StandInGraph:
    """Captured work; what it read and wrote, it reads and writes again."""

    def __init__(self, work: list[Work]) -> None:
        self._captured = work

    def launch(self, stream: StandInStream) -> None:
        for work in self._captured:
            stream.enqueue(work)

    def close(self) -> None:
        self._captured = []


class StandInHostMemory:
    """Memory that a real device would page-lock."""

    def __init__(self, size: int) -> None:
        self.data, self.address = _aligned(size)
        self.data[:] = _POISON

    def close(self) -> None:
        self.data = np.empty(0, np.uint8)


class StandInDevice:
    """In the place of ``CudaDevice``. ``memory_bytes`` is all there is to allocate."""

    def __init__(self, index: int = 0, memory_bytes: int = 1 << 40) -> None:
        self.index = index
        self.lock = threading.RLock()
        self._left = memory_bytes
        self._starts: list[int] = []
        self._blocks: dict[int, Bytes] = {}
        self._guard = threading.Lock()

    @property
    def allocations(self) -> int:
        """How many pieces of memory are allocated."""
        return len(self._blocks)

    def allocate(self, size: int) -> int:
        with self._guard:
            if size > self._left:
                raise UnavailableError(f"device {self.index} has {self._left} bytes left, and {size} are needed")
            block, address = _aligned(size)
            block[:] = _POISON
            self._left -= size
            self._blocks[address] = block
            insort(self._starts, address)
        return address

    def free(self, address: int) -> None:
        with self._guard:
            block = self._blocks.pop(address, None)
            if block is None:
                raise InternalError(f"address {address:#x} was not allocated on device {self.index}, or freed before")
            self._starts.remove(address)
            self._left += len(block)

    def check(self, address: int, size: int) -> None:
        """Refuse a range that is not allocated.

        Raises:
            InternalError: a GPU would have read or overwritten something else, or stopped.
        """
        block = self._blocks.get(address)
        if block is not None and size <= len(block):
            return
        with self._guard:
            place = bisect_right(self._starts, address) - 1
            start = self._starts[place] if place >= 0 else 0
            if place < 0 or address + size > start + len(self._blocks[start]):
                raise InternalError(f"{size} bytes at {address:#x} are not memory of device {self.index}")

    def allocate_host(self, size: int) -> StandInHostMemory:
        try:
            return StandInHostMemory(size)
        except MemoryError as error:
            raise UnavailableError(f"there are no {size} bytes of memory of the host: {error}") from error

    def new_stream(self) -> StandInStream:
        return StandInStream(self.lock)

    def new_event(self) -> StandInEvent:
        return StandInEvent()

    def copy_in(self, target: int, source: int, size: int, stream: StandInStream) -> None:
        self._move(target, source, size, stream, (target,))

    def copy_out(self, target: int, source: int, size: int, stream: StandInStream) -> None:
        self._move(target, source, size, stream, (source,))

    def copy_within(self, target: int, source: int, size: int, stream: StandInStream) -> None:
        self._move(target, source, size, stream, (target, source))

    def _move(self, target: int, source: int, size: int, stream: StandInStream, checked: tuple[int, ...]) -> None:
        def work() -> None:
            for address in checked:
                self.check(address, size)
            ctypes.memmove(target, source, size)

        stream.enqueue(work)

    def zero(self, target: int, size: int, stream: StandInStream) -> None:
        def work() -> None:
            self.check(target, size)
            ctypes.memset(target, 0, size)

        stream.enqueue(work)

    def begin_capture(self, stream: StandInStream) -> None:
        stream.begin_capture()

    def end_capture(self, stream: StandInStream) -> StandInGraph:
        return StandInGraph(stream.end_capture())

    def close(self) -> None:
        """Nothing: memory goes with its owner."""


def _aligned(size: int) -> tuple[Bytes, int]:
    memory = np.empty(max(1, size) + ALIGNMENT, np.uint8)
    skipped = -memory.ctypes.data % ALIGNMENT
    block = memory[skipped : skipped + size] if size else memory[skipped : skipped + 1][:0]
    return block, memory.ctypes.data + skipped
