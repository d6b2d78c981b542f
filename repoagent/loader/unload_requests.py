"""Passing on an agent's wish that its model be unloaded."""

import logging
import threading
from collections.abc import Callable

__all__ = ["request_unload"]

logger = logging.getLogger("repoagent.loader")


def request_unload(handler: Callable[[str, str], None] | None, model: str, reason: str) -> None:
    """Call ``handler(model, reason)`` soon, and return at once.

    The agent may be in the middle of a call that an unload has to wait for, so the handler gets a thread of its own.
    """
    if handler is None:
        logger.warning("model '%s' should be unloaded, which nobody here does: %s", model, reason)
        return
    logger.info("model '%s' is to be unloaded: %s", model, reason)
    threading.Thread(
        target=_handle, args=(handler, model, reason), name=f"repoagent-unload-{model}", daemon=True
    ).start()


def _handle(handler: Callable[[str, str], None], model: str, reason: str) -> None:
    try:
        handler(model, reason)
    except Exception:
        logger.exception("model '%s' could not be unloaded as its agent asked", model)
