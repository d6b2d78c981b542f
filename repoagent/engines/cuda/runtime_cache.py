"""What TensorRT for RTX compiles on this machine, kept in a file. TensorRT itself has no such thing."""

import logging
from collections.abc import Callable
from pathlib import Path

from repoagent.atomic_file import replace_file
from repoagent.engines.bindings import trt

__all__ = ["with_runtime_cache"]

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 30


def with_runtime_cache(
    engine: trt.ICudaEngine, path: Path
) -> tuple[Callable[[trt.ICudaEngine], trt.IExecutionContext | None], Callable[[], None]]:
    """How contexts are made that use the cache in ``path``, and what writes it back.

    A cache that cannot be read, or that was made by another version or on another GPU, is made again.
    """
    config = engine.create_runtime_config()
    cache = config.create_runtime_cache()
    kept = _read(path)
    if kept and not cache.deserialize(kept):
        logger.info("the runtime cache %s is of another version or GPU, and is made again", path)
    if not config.set_runtime_cache(cache):
        logger.warning("TensorRT for RTX takes no runtime cache: what it compiles is not kept")

    def make(engine: trt.ICudaEngine) -> trt.IExecutionContext | None:
        return engine.create_execution_context(config)

    def write() -> None:
        data = cache.serialize()
        try:
            if data is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                replace_file(path, bytes(data), private=True)
        except OSError as error:
            logger.warning("the runtime cache %s cannot be written: %s", path, error)

    return make, write


def _read(path: Path) -> bytes:
    """What was kept; nothing if that cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        logger.warning("the runtime cache %s cannot be read: %s", path, error)
        return b""
    return data if len(data) <= _MOST_BYTES else b""
