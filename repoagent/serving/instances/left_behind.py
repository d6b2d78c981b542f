"""Native code of a load that no one can end: it runs on a thread that is left behind when the load is cancelled."""

import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from repoagent.errors import CancelledError

__all__ = ["loading_until", "unless_cancelled"]

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.1
_cancelled: Final[contextvars.ContextVar[Callable[[], bool] | None]] = contextvars.ContextVar(
    "repoagent_load_cancelled", default=None
)


@contextmanager
def loading_until(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Inside, :func:`unless_cancelled` gives up once ``cancelled`` is true."""
    token = _cancelled.set(cancelled)
    try:
        yield
    finally:
        _cancelled.reset(token)


def unless_cancelled(
    call: Callable[[], T], give_up: Callable[[], object] = lambda: None, discard: Callable[[T], object] = lambda _: None
) -> T:
    """The result of ``call``, which has no effect but that; outside of a load it is simply called.

    When the load is cancelled, ``give_up`` asks it to end, which it may not hear; ``discard`` gets what it still made.

    Raises:
        CancelledError: the load was cancelled; ``call`` may go on.
        Exception: what ``call`` raises.
    """
    cancelled = _cancelled.get()
    if cancelled is None:
        return call()
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
            future.add_done_callback(lambda done: None if done.exception() else discard(done.result()))
            raise CancelledError("the load was cancelled while the model was being opened")
    return future.result()


def _run(call: Callable[[], T], future: "Future[T]") -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
