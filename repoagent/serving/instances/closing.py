"""Ending what a version of a model had, when some of it does not want to end."""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.base import Instance

__all__ = ["close_all", "join_all"]

logger: Final = logging.getLogger(__name__)


def close_all(instances: Iterable[Instance]) -> None:
    """Close every one, also if one raises. Those that close slowly do so together: their time limits start now."""
    together: list[threading.Thread] = []
    for instance in instances:
        if Capability.CLOSES_SLOWLY in instance.capabilities:
            thread = threading.Thread(target=_close, args=(instance,), name="repoagent-close-instance", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # The machine has no thread left.
                _close(instance)
            else:
                together.append(thread)
        else:
            _close(instance)
    for thread in together:
        thread.join()


def _close(instance: Instance) -> None:
    try:
        instance.close()
    except Exception:
        logger.exception("an instance of a model cannot be closed")


def join_all(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait until all have ended; no longer than ``seconds`` for all of them."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
