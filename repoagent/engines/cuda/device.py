"""A GPU: memory, streams, events, graphs."""

import ctypes
import logging
from typing import Any, Final

import numpy as np
from cuda.bindings import runtime

from repoagent.engines.protocol import Bytes
from repoagent.errors import InternalError, UnavailableError, UnsupportedError

__all__ = ["LASTING", "CudaDevice", "checked", "released", "runtime"]


logger = logging.getLogger(__name__)

LASTING: Final = frozenset(
    {
        "cudaErrorAssert",
        "cudaErrorECCUncorrectable",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalAddress",
        "cudaErrorIllegalInstruction",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorLaunchTimeout",
        "cudaErrorMisalignedAddress",
    }
)
"""After one of these every later call of the process fails."""


def checked(result: tuple[Any, ...], what: str) -> Any:
    """What a call returned beside its error: a value, or None.

    Args:
        what: What the call was for, for the message.

    Raises:
        UnavailableError: there is not enough memory.
        InternalError: it failed otherwise.
    """
    status = result[0]
    if int(status) != 0:
        runtime.cudaGetLastError()  # Else the one that asks for the last error next takes this one for its own.
        message = f"CUDA cannot {what}: {status.name}"
        if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise UnavailableError(f"{message}; unload other models, or lower the number of instances")
        if status.name in LASTING:
            message += "; no plan can run in this process any more: restart the server"
        raise InternalError(message)
    return result[1] if len(result) > 1 else None


def released(result: tuple[Any, ...], what: str) -> None:
    """As :func:`checked` of a call that gives something back: a failure is logged, as no one can do more about it."""
    try:
        checked(result, what)
    except (InternalError, UnavailableError) as error:
        logger.warning("%s", error)


_MOST_BYTES: Final = 1 << 62
"""CUDA takes sizes of 64 bits; the sizes of a plan may have any product."""


class CudaStream:
    """A stream that does not wait for the default stream."""

    def __init__(self) -> None:
        flags = runtime.cudaStreamNonBlocking
        self._stream: Any = checked(runtime.cudaStreamCreateWithFlags(flags), "make a stream")
        self.handle = int(self._stream)

    def wait_for(self, event: "CudaEvent") -> None:
        """What is enqueued after this begins when ``event`` has come."""
        checked(runtime.cudaStreamWaitEvent(self.handle, event.handle, 0), "let a stream wait")

    def synchronize(self) -> None:
        """Wait until everything enqueued so far is done."""
        checked(runtime.cudaStreamSynchronize(self.handle), "finish the work of a stream")

    def close(self) -> None:
        if self._stream is not None:
            self._stream = None
            released(runtime.cudaStreamDestroy(self.handle), "free a stream")


class CudaEvent:
    """A place in a stream; an event without a clock."""

    def __init__(self) -> None:
        flags = runtime.cudaEventDisableTiming | runtime.cudaEventBlockingSync
        self._event: Any = checked(runtime.cudaEventCreateWithFlags(flags), "make an event")
        self.handle = int(self._event)

    def record(self, stream: CudaStream) -> None:
        """Come when everything enqueued on ``stream`` so far is done."""
        checked(runtime.cudaEventRecord(self.handle, stream.handle), "record an event")

    def wait(self) -> None:
        """Wait on the host until it has come; at once if it was never recorded. ``InternalError`` if what was enqueued
        before it failed."""
        checked(runtime.cudaEventSynchronize(self.handle), "finish a run")

    def close(self) -> None:
        if self._event is not None:
            self._event = None
            released(runtime.cudaEventDestroy(self.handle), "free an event")


class CudaGraph:
    """A run on ``device`` that was captured once and is launched as a whole."""

    def __init__(self, graph: Any, device: "CudaDevice") -> None:
        self._device = device
        self._executable: Any = checked(runtime.cudaGraphInstantiate(graph, 0), "make a graph")

    def launch(self, stream: CudaStream) -> None:
        self._device.use()
        checked(runtime.cudaGraphLaunch(self._executable, stream.handle), "launch a graph")

    def close(self) -> None:
        if self._executable is not None:
            executable, self._executable = self._executable, None
            released(runtime.cudaGraphExecDestroy(executable), "free a graph")


class CudaHostMemory:
    """Page-locked memory."""

    def __init__(self, size: int) -> None:
        size = max(1, size)
        self.address = int(checked(runtime.cudaHostAlloc(size, 0), f"allocate {size} bytes of page-locked memory"))
        self.data: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def close(self) -> None:
        if self.address:
            address, self.address = self.address, 0
            self.data = np.empty(0, np.uint8)
            released(runtime.cudaFreeHost(address), "free page-locked memory")


class CudaDevice:
    """One GPU. Its methods may be called from any thread.

    What allocates, creates or computes makes the GPU the calling thread's own first. Copies and events need not: CUDA
    takes them from any thread, and each call lets other threads of Python go first.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    def use(self) -> None:
        """Make it the calling thread's current GPU."""
        checked(runtime.cudaSetDevice(self.index), f"use GPU {self.index}")

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes; raises ``UnavailableError`` if there is not enough of it."""
        _refuse_absurd(size)
        self.use()
        return int(checked(runtime.cudaMalloc(max(1, size)), f"allocate {size} bytes on GPU {self.index}"))

    def free(self, address: int) -> None:
        released(runtime.cudaFree(address), "free memory")

    def allocate_host(self, size: int) -> CudaHostMemory:
        """Page-locked host memory, aligned for any element."""
        _refuse_absurd(size)
        self.use()
        return CudaHostMemory(size)

    def new_stream(self) -> CudaStream:
        self.use()
        return CudaStream()

    def new_event(self) -> CudaEvent:
        self.use()
        return CudaEvent()

    def copy_in(self, target: int, source: int, size: int, stream: CudaStream) -> None:
        """Copy from the host to the device. ``source`` is left alone until it is done."""
        _copy(target, source, size, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, stream)

    def copy_out(self, target: int, source: int, size: int, stream: CudaStream) -> None:
        _copy(target, source, size, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost, stream)

    def copy_within(self, target: int, source: int, size: int, stream: CudaStream) -> None:
        _copy(target, source, size, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice, stream)

    def zero(self, target: int, size: int, stream: CudaStream) -> None:
        if size:
            self.use()
            checked(runtime.cudaMemsetAsync(target, 0, size, stream.handle), "clear memory")

    def begin_capture(self, stream: CudaStream) -> None:
        """What is enqueued on ``stream`` from now on is captured and not executed."""
        self.use()
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(runtime.cudaStreamBeginCapture(stream.handle, mode), "begin to capture")

    def end_capture(self, stream: CudaStream) -> CudaGraph:
        """The end of it; raises ``UnsupportedError`` if something in between cannot be captured."""
        status, graph = runtime.cudaStreamEndCapture(stream.handle)
        if int(status) != 0 or graph is None:
            runtime.cudaGetLastError()
            raise UnsupportedError(f"the run cannot be captured as a CUDA graph: {status.name}")
        try:
            return CudaGraph(graph, self)
        finally:
            released(runtime.cudaGraphDestroy(graph), "free what was captured")

    def close(self) -> None:
        """Nothing: what was made is closed by its owner."""


def _copy(target: int, source: int, size: int, kind: Any, stream: CudaStream) -> None:
    if size:
        checked(runtime.cudaMemcpyAsync(target, source, size, kind, stream.handle), f"copy {size} bytes")


def _refuse_absurd(size: int) -> None:
    if size > _MOST_BYTES:
        raise UnavailableError(f"{size} bytes are more than any GPU has; build the plan for smaller shapes")
