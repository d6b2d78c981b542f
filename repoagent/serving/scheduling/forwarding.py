"""What schedulers share that stand before another one."""

from collections.abc import Sequence

from repoagent.serving.instances.base import Instance
from repoagent.serving.scheduling.direct import ModelScheduler, ResizableScheduler

__all__ = ["ForwardingScheduler"]


class ForwardingScheduler:
    """Hands on what does not concern requests; see :class:`ModelScheduler` and :class:`ResizableScheduler`."""

    def __init__(self, inner: ModelScheduler) -> None:
        self._inner = inner

    @property
    def waiting(self) -> int:
        return self._inner.waiting

    @property
    def resizable(self) -> bool:
        return isinstance(self._inner, ResizableScheduler) and self._inner.resizable

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        if isinstance(self._inner, ResizableScheduler):
            self._inner.resize(added, removed)

    def retire(self) -> None:
        self._inner.retire()

    def close(self) -> None:
        self._inner.close()
