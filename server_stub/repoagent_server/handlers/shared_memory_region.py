"""One region of system shared memory that a client has registered."""

# What multiprocessing.shared_memory is made of. That module itself would unlink regions of others at the end.
import _posixshmem  # type: ignore[import-not-found]
import mmap
import os
import stat
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError

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
