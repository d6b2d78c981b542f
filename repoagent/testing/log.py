"""Everything that is logged, for tests that look for what must not be."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["captured_log"]


@contextmanager
def captured_log() -> Iterator[io.StringIO]:
    """For a block, every log record of every level goes into the stream too, tracebacks included."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
