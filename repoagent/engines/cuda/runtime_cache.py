"""What TensorRT for RTX compiles on this machine, kept in a file. TensorRT itself has no such thing."""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from repoagent.engines.bindings import trt
from repoagent.engines.files import replace_file

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
    with suppress(FileNotFoundError):
        if path.stat().st_size <= _MOST_BYTES and not cache.deserialize(path.read_bytes()):
            logger.info("the runtime cache %s is of another version or GPU, and is made again", path)
    config.set_runtime_cache(cache)

    def make(engine: trt.ICudaEngine) -> trt.IExecutionContext | None:
        return engine.create_execution_context(config)

    def write() -> None:
        try:
            replace_file(path, bytes(cache.serialize()))
        except OSError as error:
            logger.warning("the runtime cache %s cannot be written: %s", path, error)

    return make, write
