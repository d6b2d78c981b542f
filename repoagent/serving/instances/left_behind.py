"""Native code of a load that cannot be ended: it runs on a thread that is left behind when the load is cancelled."""

import collections
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from repoagent.errors import CancelledError, UnavailableError

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.1
_MOST: Final = 2
"""Calls that one model may leave behind: each takes processors until it ends, and a corrected model should load."""
_load: Final[contextvars.ContextVar[tuple[str, Callable[[], bool]] | None]] = contextvars.ContextVar(
    "repoagent_load", default=None
)
_left: Final[collections.Counter[str]] = collections.Counter()
_lock: Final = threading.Lock()


@contextmanager
def loading_until(model: str, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Inside, where ``model`` is loaded, :func:`unless_cancelled` gives up once ``cancelled`` is true."""
    token = _load.set((model, cancelled))
    try:
        yield
    finally:
        _load.reset(token)


def unless_cancelled(
    call: Callable[[], T], give_up: Callable[[], object] = lambda: None, discard: Callable[[T], object] = lambda _: None
) -> T:
    """The result of ``call``, which has no effect but that; outside of a load it is simply called.

    When the load is cancelled, ``give_up`` asks it to end, which it may not hear; ``discard`` gets what it still made.

    Raises:
        CancelledError: the load was cancelled; ``call`` may go on.
        UnavailableError: what earlier loads of the model left behind has not ended; ``call`` was not called.
        Exception: what ``call`` raises.
    """
    load = _load.get()
    if load is None:
        return call()
    model, cancelled = load
    with _lock:
        if _left[model] >= _MOST:
            raise UnavailableError(
                f"{_MOST} loads of model '{model}' that were cancelled have not ended: their files take very long to "
                "open; wait for them, give the model another name, or restart the server"
            )
    future: Future[T] = Future()
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(_run, call, future), name="repoagent-open", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # The machine has no thread left.
        return call()
    while not concurrent.futures.wait((future,), _LOOK_SECONDS).done:
        if cancelled():
            give_up()
            with _lock:
                _left[model] += 1
            future.add_done_callback(lambda done: _ended(model, done, discard))
            raise CancelledError("the load was cancelled while the model was being opened")
    return future.result()


def _ended(model: str, done: "Future[T]", discard: Callable[[T], object]) -> None:
    with _lock:
        _left[model] -= 1
        if not _left[model]:
            del _left[model]
    if done.exception() is None:
        discard(done.result())


def _run(call: Callable[[], T], future: "Future[T]") -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
