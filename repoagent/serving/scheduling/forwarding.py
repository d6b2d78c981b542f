"""What schedulers share that stand before another one."""

from collections.abc import Sequence

from repoagent.serving.instances.base import Instance
from repoagent.serving.scheduling.scheduler import Scheduler

__all__ = ["ForwardingScheduler"]


class ForwardingScheduler(Scheduler):
    """Hands on what does not concern requests."""

    def __init__(self, model_name: str, inner: Scheduler) -> None:
        super().__init__(model_name)
        self._inner = inner

    @property
    def waiting(self) -> int:
        return self._inner.waiting

    @property
    def resizable(self) -> bool:
        return self._inner.resizable

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        self._inner.resize(added, removed)

    def retire(self) -> None:
        self._inner.retire()

    def close(self) -> None:
        self._inner.close()
