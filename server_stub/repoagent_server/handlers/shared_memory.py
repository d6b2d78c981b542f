"""The shared memory extensions: regions that clients register, and where in them tensors lie.

Of CUDA's there is what Triton has on a machine without a GPU.
"""

import _posixshmem  # type: ignore[import-not-found]
import mmap
import os
import stat
import threading
from dataclasses import dataclass
from typing import Final

from repoagent.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from repoagent_server.access import NotPermittedError, Right

_RESERVED: Final = "triton_python_backend_shm_region_"
_NAME_MAX: Final = 255


class Region:
    """``byte_size`` bytes from ``offset`` on of the POSIX shared memory object ``key``, mapped.

    It stays mapped as long as this object or a view of it lives. The object belongs to the client, who can make it
    smaller at any time; touching what is gone would end this process (SIGBUS). So :meth:`view` looks at its size first.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open and map it.

        Raises:
            InternalError: there is no such object, it is not ours to write, or the key is none.
            InvalidArgumentError: the object is smaller than this, or nothing is to be mapped.
        """
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        descriptor = _open(name, key)
        try:
            _check_size(name, key, descriptor, offset + byte_size)
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            self._first = offset - start
            if byte_size == 0:
                raise _unmappable(name, "Invalid argument")
            try:
                self._memory = mmap.mmap(descriptor, self._first + byte_size, offset=start)
            except (OSError, OverflowError, ValueError) as error:
                raise _unmappable(name, getattr(error, "strerror", None) or str(error)) from error
        finally:
            os.close(descriptor)

    def view(self, offset: int, byte_size: int) -> memoryview:
        """The bytes from ``offset`` on, writable. The caller has checked that they lie within the region.

        Raises:
            InvalidArgumentError: the object has been made smaller than the region.
        """
        # The mapping has a descriptor of its own, so this is the size of the object at this moment.
        size, needed = self._memory.size(), self.offset + offset + byte_size
        if size < needed:
            raise InvalidArgumentError(
                f"shared memory region '{self.name}' has shrunk: '{self.key}' has {size} bytes now, {needed} are needed"
            )
        start = self._first + offset
        return memoryview(self._memory)[start : start + byte_size]


def _open(name: str, key: str) -> int:
    # One name in one flat directory: nothing that leads elsewhere.
    file = key.lstrip("/")
    if file.startswith(_RESERVED):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED}'"
        )
    unable = InternalError(f"Unable to open shared memory region: '{key}'")
    if file in ("", ".", "..") or "/" in file or "\0" in file or len(os.fsencode(file)) > _NAME_MAX:
        raise unable
    try:
        return int(_posixshmem.shm_open(f"/{file}", os.O_RDWR | os.O_NONBLOCK, 0))
    except (OSError, ValueError) as error:
        raise unable from error


def _check_size(name: str, key: str, descriptor: int, needed: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise InternalError(f"Invalid shared memory region: '{key}'")
    if needed > status.st_size:
        raise InvalidArgumentError(f"failed to register shared memory region '{name}': invalid args")


def _unmappable(name: str, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"failed to register shared memory region '{name}': unable to process address space{reason}"
    )


_DISABLED: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
_NOT_PERMITTED: Final = "a request that names shared memory needs the right 'manage' for all models"
_SIZE_MAX: Final = 2**64 - 1
_MOST: Final = 1024
"""Each region takes one of the process's file descriptors, which connections need as well."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies in a region. It keeps the region mapped."""

    region: Region
    offset: int
    byte_size: int

    def view(self) -> memoryview:
        """Its bytes, writable.

        Raises:
            InvalidArgumentError: the client has made the region smaller meanwhile.
        """
        return self.region.view(self.offset, self.byte_size)

    def room(self, byte_size: int) -> memoryview | None:
        return self.view()[:byte_size] if byte_size <= self.byte_size else None


class Regions:
    """The regions of one server, for all of its front ends and threads."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the server's metadata list."""
        return ("system_shared_memory",) if self._allowed else ()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region under ``name``.

        Raises:
            UnsupportedError: the operator has not allowed shared memory.
            AlreadyExistsError: there is a region of that name.
            UnavailableError: there are too many.
            InternalError, InvalidArgumentError: see :class:`Region`; or it has no name.
        """
        self._check_allowed()
        if not name:
            raise InvalidArgumentError("'region name' is necessary to register system shared memory region")
        with self._lock:
            if name in self._regions:
                raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
            if len(self._regions) >= _MOST:
                raise UnavailableError(
                    f"failed to register shared memory region '{name}': there are {_MOST} already; unregister some"
                )
            self._regions[name] = Region(name, key, offset, byte_size)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; one that is not there is fine. Requests that use it still can.

        Raises:
            UnsupportedError: the operator has not allowed shared memory.
        """
        self._check_allowed()
        with self._lock:
            if name:
                self._regions.pop(name, None)
            else:
                self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        """One region, or all of them by name.

        Raises:
            UnsupportedError: the operator has not allowed shared memory.
            NotFoundError: there is none of that name.
        """
        self._check_allowed()
        with self._lock:
            if not name:
                return [self._regions[name] for name in sorted(self._regions)]
            region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find system shared memory region: '{name}'")
        return [region]

    def span(self, name: str, offset: int, byte_size: int) -> Span:
        """``byte_size`` bytes from ``offset`` on of region ``name``.

        Raises:
            UnsupportedError: the operator has not allowed shared memory.
            NotFoundError: there is no such region.
            InvalidArgumentError: they do not lie within it.
        """
        self._check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        if offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
        if byte_size > _SIZE_MAX - offset:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
                f"({_SIZE_MAX}) for region '{name}'"
            )
        if offset + byte_size > region.byte_size:
            raise InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{name}'")
        return Span(region, offset, byte_size)

    def register_cuda(self, name: str) -> None:
        """Always refused, with Triton's error for a handle that it cannot open.

        Raises:
            UnsupportedError: the operator has not allowed shared memory.
            InvalidArgumentError: he has, but there is no GPU.
        """
        self._check_allowed()
        if not name:
            raise InvalidArgumentError("'region name' is necessary to register cuda shared memory region")
        raise InvalidArgumentError("failed to register shared memory region: invalid args")

    def check_cuda(self, name: str) -> None:
        """What is asked about CUDA region ``name``; about all of them ("") the answer is that there are none.

        Raises:
            NotFoundError: always, if a name is given.
        """
        if name in self._regions:
            raise NotFoundError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory"
            )
        if name:
            raise NotFoundError(f"Unable to find cuda shared memory region: '{name}'")

    def close(self) -> None:
        """Let go of every region."""
        with self._lock:
            self._regions.clear()

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise UnsupportedError(_DISABLED)


class _ClosedRegions(Regions):
    """For clients that may not name shared memory, whether there is any or not."""

    def span(self, name: str, offset: int, byte_size: int) -> Span:
        raise NotPermittedError(_NOT_PERMITTED, right=Right.MANAGE.value)


NO_REGIONS: Final = Regions(allowed=False)
"""For a server without shared memory."""
CLOSED_REGIONS: Final = _ClosedRegions(allowed=False)
"""For requests of clients that do not manage all models: what others have registered is not theirs."""
