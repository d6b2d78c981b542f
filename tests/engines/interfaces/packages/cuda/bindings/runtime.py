"""What this program calls of ``cuda.bindings.runtime``, over the devices of the stand-in, and as strict as documented.

A call gives a tuple that begins with an error and has None for values after one. The current GPU belongs to a thread.
Handles are checked, and may be used once they were made and until they are destroyed. ``test_names.py`` compares names,
values and parameters with the package that this one stands for.
"""

import enum
import threading
from collections.abc import Callable
from typing import Any

from repoagent.errors import RepoAgentError, UnavailableError
from tests.engines.standin.device import StandInDevice, StandInEvent, StandInGraph, StandInHostMemory, StandInStream

MEMORY = 1 << 28
DEVICES = [StandInDevice(index, MEMORY) for index in range(2)]

cudaStreamNonBlocking = 1
cudaEventBlockingSync = 1
cudaEventDisableTiming = 2


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400
    cudaErrorIllegalAddress = 700
    cudaErrorLaunchFailure = 719
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class cudaStreamCaptureMode(enum.IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


class _Handle:
    def __init__(self, value: int) -> None:
        self._value = value

    def __int__(self) -> int:
        return self._value


class _Thread(threading.local):
    device = 0
    capturing: StandInStream | None = None
    invalidated = False


_OK = cudaError_t.cudaSuccess
_here = _Thread()
_streams: dict[int, tuple[StandInStream, int]] = {}
_events: dict[int, tuple[StandInEvent, int]] = {}
_graphs: dict[int, StandInGraph] = {}
_executables: dict[int, StandInGraph] = {}
_pinned: dict[int, StandInHostMemory] = {}
_last = [0]
_broken: list[cudaError_t] = []
"""An error that lasts: every call gives it from then on."""
calls: list[str] = []
"""The names of calls, for tests that count them."""


class _Refused(Exception):
    def __init__(self, error: cudaError_t) -> None:
        self.error = error


def _call(values: int) -> Callable[[Callable[..., Any]], Callable[..., tuple[Any, ...]]]:
    """A function whose result becomes a tuple with ``values`` places behind the error."""

    def decorate(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            calls.append(function.__name__)
            error, result = _OK, None
            try:
                if _broken:
                    raise _Refused(_broken[0])
                result = function(*arguments)
            except _Refused as refused:
                error = refused.error
            except UnavailableError:
                error = cudaError_t.cudaErrorMemoryAllocation
            except RepoAgentError:
                error = cudaError_t.cudaErrorLaunchFailure
            return (error, *(result if error is _OK else None for _ in range(values)))

        return call

    return decorate


def live() -> dict[str, int]:
    """How much was made and not given back."""
    return {
        "device": sum(device.allocations for device in DEVICES),
        "pinned": len(_pinned),
        "streams": len(_streams),
        "events": len(_events),
        "graphs": len(_graphs) + len(_executables),
    }


def fail_for_good(error: cudaError_t | None) -> None:
    """Let every call fail from now on, or no longer."""
    _broken[:] = [] if error is None else [error]


def stream_of(handle: int) -> tuple[StandInStream, int]:
    """A stream and the GPU that it is on."""
    found: tuple[StandInStream, int] = _found(_streams, handle)
    return found


def current() -> int:
    """The calling thread's GPU."""
    return _here.device


def _number() -> int:
    _last[0] += 1
    return _last[0]


def _found(table: dict[int, Any], handle: Any) -> Any:
    if type(handle) is not int:
        raise TypeError(f"a handle must be an int, not {handle!r}")
    if handle not in table:
        raise _Refused(cudaError_t.cudaErrorInvalidResourceHandle)
    return table[handle]


def _not_while_capturing() -> None:
    if _here.capturing is not None:
        _here.invalidated = True
        raise _Refused(cudaError_t.cudaErrorStreamCaptureUnsupported)


def cudaGetLastError() -> tuple[cudaError_t]:
    return (_OK,)


@_call(1)
def cudaGetDeviceCount() -> int:
    return len(DEVICES)


class cudaDeviceProp:
    name = b"imitation"
    major, minor, totalGlobalMem = 8, 9, MEMORY


@_call(1)
def cudaGetDeviceProperties(device: int) -> cudaDeviceProp:
    return cudaDeviceProp()


@_call(0)
def cudaSetDevice(device: int) -> None:
    if not 0 <= device < len(DEVICES):
        raise _Refused(cudaError_t.cudaErrorInvalidDevice)
    _here.device = device


@_call(0)
def cudaDeviceSynchronize() -> None:
    for stream, device in list(_streams.values()):
        if device == _here.device:
            stream.synchronize()


@_call(1)
def cudaMalloc(size: int) -> int:
    if size >= 1 << 64:
        raise OverflowError("Python int too large to convert to C size_t")
    _not_while_capturing()
    return DEVICES[_here.device].allocate(size)


@_call(0)
def cudaFree(devPtr: int) -> None:
    _not_while_capturing()
    for stream, _ in list(_streams.values()):
        stream.synchronize()
    owners = [one for one in DEVICES if devPtr in one._blocks]
    if not owners:
        raise _Refused(cudaError_t.cudaErrorInvalidValue)
    owners[0].free(devPtr)


@_call(1)
def cudaHostAlloc(size: int, flags: int) -> int:
    _not_while_capturing()
    memory = StandInHostMemory(size)
    _pinned[memory.address] = memory
    return memory.address


@_call(0)
def cudaFreeHost(ptr: int) -> None:
    if ptr not in _pinned:
        raise _Refused(cudaError_t.cudaErrorInvalidValue)
    for stream, _ in list(_streams.values()):
        stream.synchronize()
    _pinned.pop(ptr).close()


@_call(1)
def cudaStreamCreateWithFlags(flags: int) -> _Handle:
    assert flags == cudaStreamNonBlocking
    number = _number()
    _streams[number] = DEVICES[_here.device].new_stream(), _here.device
    return _Handle(number)


@_call(0)
def cudaStreamDestroy(stream: int) -> None:
    made, _ = _found(_streams, stream)
    made.synchronize()
    del _streams[stream]


@_call(0)
def cudaStreamSynchronize(stream: int) -> None:
    made, _ = _found(_streams, stream)
    if made.capturing:
        _here.invalidated = True
        raise _Refused(cudaError_t.cudaErrorStreamCaptureUnsupported)
    made.synchronize()


@_call(0)
def cudaStreamWaitEvent(stream: int, event: int, flags: int) -> None:
    made, _ = _found(_streams, stream)
    made.wait_for(_found(_events, event)[0])


@_call(1)
def cudaEventCreateWithFlags(flags: int) -> _Handle:
    assert flags == cudaEventDisableTiming | cudaEventBlockingSync
    number = _number()
    _events[number] = StandInEvent(), _here.device
    return _Handle(number)


@_call(0)
def cudaEventDestroy(event: int) -> None:
    _found(_events, event)
    del _events[event]


@_call(0)
def cudaEventRecord(event: int, stream: int) -> None:
    (made, here), (on, there) = _found(_events, event), _found(_streams, stream)
    if here != there:
        raise _Refused(cudaError_t.cudaErrorInvalidResourceHandle)
    made.record(on)


@_call(0)
def cudaEventSynchronize(event: int) -> None:
    _found(_events, event)[0].wait()


def _host(address: int, size: int) -> None:
    """Copies of memory that is not page-locked would wait, and nothing here may."""
    if not any(start <= address and address + size <= start + len(one.data) for start, one in _pinned.items()):
        raise _Refused(cudaError_t.cudaErrorInvalidValue)


@_call(0)
def cudaMemcpyAsync(dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: int) -> None:
    made, device = _found(_streams, stream)
    on = DEVICES[device]
    match kind:
        case cudaMemcpyKind.cudaMemcpyHostToDevice:
            _host(src, count)
            on.copy_in(dst, src, count, made)
        case cudaMemcpyKind.cudaMemcpyDeviceToHost:
            _host(dst, count)
            on.copy_out(dst, src, count, made)
        case cudaMemcpyKind.cudaMemcpyDeviceToDevice:
            on.copy_within(dst, src, count, made)
        case _:
            raise TypeError(f"kind must be a cudaMemcpyKind, not {kind!r}")


@_call(0)
def cudaMemsetAsync(devPtr: int, value: int, count: int, stream: int) -> None:
    assert value == 0
    made, device = _found(_streams, stream)
    DEVICES[device].zero(devPtr, count, made)


@_call(0)
def cudaStreamBeginCapture(stream: int, mode: cudaStreamCaptureMode) -> None:
    assert mode is cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    made, _ = _found(_streams, stream)
    made.begin_capture()
    _here.capturing, _here.invalidated = made, False


@_call(1)
def cudaStreamEndCapture(stream: int) -> _Handle:
    made, _ = _found(_streams, stream)
    work = made.end_capture()
    _here.capturing = None
    if _here.invalidated:
        raise _Refused(cudaError_t.cudaErrorStreamCaptureInvalidated)
    number = _number()
    _graphs[number] = StandInGraph(work)
    return _Handle(number)


@_call(1)
def cudaGraphInstantiate(graph: _Handle, flags: int) -> _Handle:
    number = _number()
    _executables[number] = StandInGraph(list(_found(_graphs, int(graph))._captured))
    return _Handle(number)


@_call(0)
def cudaGraphDestroy(graph: _Handle) -> None:
    _found(_graphs, int(graph))
    del _graphs[int(graph)]


@_call(0)
def cudaGraphLaunch(graphExec: _Handle, stream: int) -> None:
    made, device = _found(_streams, stream)
    if device != _here.device:
        raise _Refused(cudaError_t.cudaErrorInvalidResourceHandle)
    _found(_executables, int(graphExec)).launch(made)


@_call(0)
def cudaGraphExecDestroy(graphExec: _Handle) -> None:
    _found(_executables, int(graphExec))
    del _executables[int(graphExec)]


@_call(1)
def cudaMemGetInfo() -> int:
    return DEVICES[_here.device]._left
