"""How many KV blocks there are, and who may hold how many. Counting only; the memory is the runner's."""

from typing import TypeAlias

from repoagent_llm.engine.task import Task
from repoagent_llm.runner.paged import PagedRunner


class BlockBudget:
    """Blocks by request, for runners that give each sequence memory of its own."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._held: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks that someone holds."""
        return self.total - self.free

    def grow(self, task: Task, blocks: int, shared: int = 0) -> bool:
        """See that ``task`` holds ``blocks``; False, and nothing changes, if there are too few."""
        more = blocks - self._held.get(task.id, 0)
        if more > self.free:
            return False
        self.free -= more
        self._held[task.id] = blocks
        return True

    def release(self, task: Task) -> None:
        """Take back what ``task`` holds."""
        self.free += self._held.pop(task.id, 0)


class PageBudget:
    """Blocks of a pool: one that several sequences hold, or that is retained as well, counts once.

    A request is promised the blocks that it may hold. What it holds is no promise any more. One block is never
    promised, because a block is copied before it is let go.
    """

    def __init__(self, runner: PagedRunner) -> None:
        self._runner = runner
        self._promised: dict[int, tuple[Task, int]] = {}

    @property
    def total(self) -> int:
        """Blocks that can be promised."""
        return self._runner.pool.total - 1

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self._runner.pool.busy

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return max(0, self.total - self.used)

    def grow(self, task: Task, blocks: int, shared: int = 0) -> bool:
        """See that ``task`` may hold ``blocks``; False, and nothing changes, if there are too few.

        ``shared``: of them others hold so many, and it will share these.
        """
        more = blocks - shared - self._held(task)
        if more > 0 and more + self._owed(task) > self.free:
            return False
        self._promised[task.id] = task, blocks
        return True

    def release(self, task: Task) -> None:
        """Take back what was promised to ``task``."""
        self._promised.pop(task.id, None)

    def _owed(self, but: Task) -> int:
        """Blocks that others may still take."""
        others = (promise for promise in self._promised.values() if promise[0] is not but)
        return sum(max(0, blocks - self._held(task)) for task, blocks in others)

    def _held(self, task: Task) -> int:
        seqs = [sequence.seq for sequence in task.group.sequences if sequence.seq is not None]
        return self._runner.held(seqs) if seqs else 0


Budget: TypeAlias = BlockBudget | PageBudget
