"""The threads of a front end on which calls may block."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_WORKERS: Final = 32
_WAITERS: Final = 1024
_SHAKING: Final = 4


class Pools:
    """Five pools, so that calls that wait for an agent or a model never keep others from their turn.

    * ``work`` computes: an index, a compressed body, the metrics.
    * ``waits`` is for loads and unloads, which go on until the agents, the backend and the last request are done. Each
      has a thread: loads that hang must not block the unload that is to cancel them.
    * ``long`` is one thread, on which large requests are read and large answers written, one after another.
    * ``asks`` is for models that are asked whether they are ready.
    * ``handshakes`` computes those of TLS: a front end takes at most half of the processors for them.
    """

    def __init__(self, name: str) -> None:
        self.work: Final = ThreadPoolExecutor(_WORKERS, f"{name}-blocking")
        self.asks: Final = ThreadPoolExecutor(_WORKERS, f"{name}-asks")
        self.waits: Final = ThreadPoolExecutor(_WAITERS, f"{name}-loads")
        self.long: Final = ThreadPoolExecutor(1, f"{name}-long")
        self.handshakes: Final = ThreadPoolExecutor(_shaking_threads(), f"{name}-handshakes")

    def __enter__(self) -> "Pools":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what runs and end the threads; again is fine."""
        self.work.shutdown()
        self.asks.shutdown()
        self.waits.shutdown()
        self.long.shutdown()
        self.handshakes.shutdown()


def _shaking_threads() -> int:
    return max(1, min(_SHAKING, len(os.sched_getaffinity(0)) // 2))
