"""A load that has been asked for and has not ended."""

import threading

from repoagent.errors import CancelledError
from repoagent.serving.lifecycle.model_states import UNLOADED

__all__ = ["PendingLoad"]


class PendingLoad:
    """One load of a model, until its end."""

    def __init__(self, *, follows_unload: bool, version: int | None = None) -> None:
        self.version = version
        """The only one that it is to bring."""
        self.follows_unload = follows_unload
        """An unload that was asked for before it had not ended."""
        self.cancelled = threading.Event()
        self.reason = ""

    def cancel(self, reason: str) -> None:
        """Have it end without the model; the first ``reason`` counts."""
        self.reason = self.reason or reason
        self.cancelled.set()

    def outdated(self, model: str) -> CancelledError:
        """The error of a load of ``model`` that was cancelled."""
        if self.reason != UNLOADED:
            return CancelledError(f"load failed for model '{model}': {self.reason}\n")
        return CancelledError(
            f"load failed for model '{model}': Newer operation has been applied to the model lifecycle, current "
            "load operation is out-dated.\n"
        )
