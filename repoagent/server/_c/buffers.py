"""Buffers: what is known about one, and who allocates them."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

from repoagent.server.enums import MemoryType

__all__ = ["BufferAttributes", "ResponseAllocator"]

_HANDLE_SIZE: Final = 64


class BufferAttributes:
    """Kind, place and size of a buffer."""

    __slots__ = ("_handle", "byte_size", "memory_type", "memory_type_id")

    def __init__(self) -> None:
        self.memory_type = MemoryType.CPU
        self.memory_type_id = 0
        self.byte_size = 0
        self._handle: Any = None

    @property
    def cuda_ipc_handle(self) -> int:
        """The address of the 64 bytes of a CUDA IPC handle, which belong to this object; 0 if there is none."""
        return ctypes.addressof(self._handle) if self._handle is not None else 0

    @cuda_ipc_handle.setter
    def cuda_ipc_handle(self, address: int) -> None:
        self._handle = ctypes.create_string_buffer(ctypes.string_at(address, _HANDLE_SIZE), _HANDLE_SIZE)


class ResponseAllocator:
    """The functions of an allocator. Requests of this layer always use the server's own, in the CPU's memory."""

    __slots__ = ("alloc", "buffer_attributes", "query", "release", "start")

    def __init__(
        self,
        alloc_function: Callable[..., Any],
        release_function: Callable[..., Any],
        start_function: Callable[..., Any] | None = None,
    ) -> None:
        self.alloc = alloc_function
        self.release = release_function
        self.start = start_function
        self.buffer_attributes: Callable[..., Any] | None = None
        self.query: Callable[..., Any] | None = None

    def set_buffer_attributes_function(self, buffer_attributes_function: Callable[..., Any]) -> None:
        """Set what may change the attributes of an allocated buffer."""
        self.buffer_attributes = buffer_attributes_function

    def set_query_function(self, query_function: Callable[..., Any]) -> None:
        """Set what tells which kind of memory the allocator prefers."""
        self.query = query_function
