"""Measuring one call of an agent and writing its line of the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from repoagent.errors import AgentError, CancelledError
from repoagent.loader.calls import reason_of
from repoagent.loader.report import EntryRecorder

__all__ = ["Measured", "measured"]


@dataclass(slots=True)
class Measured:
    """How a call went; complete when its block has been left."""

    seconds: float = 0.0
    outcome: str = "ok"
    error: str | None = None


@contextmanager
def measured(recorder: EntryRecorder, action: str, *, only_failures: bool = False) -> Iterator[Measured]:
    """Time a block and add the line for ``action``; with ``only_failures`` a block that goes well leaves none.

    Exceptions pass through.
    """
    result = Measured()
    started = time.monotonic()
    try:
        yield result
    except BaseException as error:
        result.outcome = "cancelled" if isinstance(error, CancelledError) else "failed"
        result.error = error.reason if isinstance(error, AgentError) else reason_of(error)
        raise
    finally:
        result.seconds = time.monotonic() - started
        if result.error is not None or not only_failures:
            recorder.finish(action, result.outcome, result.seconds, result.error)
