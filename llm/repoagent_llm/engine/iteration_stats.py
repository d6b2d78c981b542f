"""Statistics: a small record per iteration while the engine runs, the full classes only when someone asks."""

import datetime as dt
import mmap
import resource
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from repoagent_llm.engine.blocks import Budget
from repoagent_llm.engine.scheduler import Scheduler, Work
from repoagent_llm.engine.sequence_cache import CacheTotals
from repoagent_llm.engine.task import Task
from repoagent_llm.runner.block_pool import BLOCK_TOKENS
from repoagent_llm.types.stats import (
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestStats,
    RequestStatsPerIteration,
    SpecDecodingStats,
)


@dataclass(slots=True)
class IterationCounts:
    """What happened around one iteration. Times in seconds."""

    iteration: int
    started: float = 0.0
    seconds: float = 0.0
    queue_seconds: float = 0.0
    new: int = 0
    completed: int = 0
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafting: int = 0
    drafting_seconds: float = 0.0
    _groups: set[int] | None = None

    def first_of(self, request_id: int) -> bool:
        """Whether this is the first sequence of a request; the others are not requests of their own."""
        if self._groups is None:
            self._groups = set()
        known = request_id in self._groups
        self._groups.add(request_id)
        return not known


class _Snapshot(NamedTuple):
    counts: IterationCounts
    active: int
    queued: int
    paused: int
    free_blocks: int
    allocated: int
    reused: int
    missed: int


class StatsKeeper:
    """Keeps the latest iterations. Filled by the engine's thread, drained by any.

    ``keeps_requests``: whether ``record_requests`` is to be called. ``max_requests``: how many run at once.
    """

    def __init__(self, iterations: int, request_iterations: int, *, max_requests: int, max_tokens: int) -> None:
        self._lock = threading.Lock()
        self._iterations: deque[_Snapshot] = deque(maxlen=iterations)
        self._requests: deque[RequestStatsPerIteration] = deque(maxlen=request_iterations)
        self._keeps_iterations = iterations > 0
        self.keeps_requests = request_iterations > 0
        self.max_requests = max_requests
        self._max_tokens = max_tokens
        self._total_blocks = 0

    def record(self, counts: IterationCounts, scheduler: Scheduler, budget: Budget, totals: CacheTotals) -> None:
        """Note one iteration."""
        if not self._keeps_iterations:
            return
        self._total_blocks = budget.total
        snapshot = _Snapshot(
            counts,
            len(scheduler.running),
            len(scheduler.waiting) + len(scheduler.aside),
            scheduler.paused_now,
            budget.free,
            totals.allocated,
            totals.reused,
            totals.missed,
        )
        with self._lock:
            self._iterations.append(snapshot)

    def record_requests(self, iteration: int, tasks: Sequence[Task], works: Sequence[Work]) -> None:
        """Note every request of an iteration; costly, so only when asked for."""
        scheduled = {work.task.id for work in works}
        stats = [_request_stats(task, task.id in scheduled) for task in tasks]
        with self._lock:
            self._requests.append(RequestStatsPerIteration(iteration, stats))

    def take_iterations(self) -> list[IterationStats]:
        """All that is kept, oldest first; it is gone afterwards."""
        with self._lock:
            snapshots = list(self._iterations)
            self._iterations.clear()
        usage = _resident()
        offset = time.time() - time.monotonic()
        return [self._convert(snapshot, usage, offset) for snapshot in snapshots]

    def take_requests(self) -> list[RequestStatsPerIteration]:
        """All that is kept, oldest first; it is gone afterwards."""
        with self._lock:
            taken = list(self._requests)
            self._requests.clear()
        return taken

    def _convert(self, snapshot: _Snapshot, memory: int, offset: float) -> IterationStats:
        counts = snapshot.counts
        moment = dt.datetime.fromtimestamp(counts.started + offset)
        looked_up = max(1, snapshot.reused + snapshot.missed)
        return IterationStats(
            timestamp=moment.strftime("%m-%d-%Y %H:%M:%S.%f"),
            iter=counts.iteration,
            iter_latency_ms=counts.seconds * 1000,
            new_active_requests_queue_latency_ms=counts.queue_seconds * 1000,
            num_new_active_requests=counts.new,
            num_active_requests=snapshot.active,
            num_queued_requests=snapshot.queued,
            num_completed_requests=counts.completed,
            max_num_active_requests=self.max_requests,
            max_batch_size_static=self.max_requests,
            max_batch_size_runtime=self.max_requests,
            max_num_tokens_static=self._max_tokens,
            max_num_tokens_runtime=self._max_tokens,
            cpu_mem_usage=memory,
            kv_cache_stats=KvCacheStats(
                self._total_blocks,
                snapshot.free_blocks,
                self._total_blocks - snapshot.free_blocks,
                BLOCK_TOKENS,
                snapshot.allocated,
                snapshot.allocated,
                snapshot.reused,
                snapshot.missed,
                snapshot.reused / looked_up,
            ),
            inflight_batching_stats=InflightBatchingStats(
                counts.context_requests + counts.generation_requests,
                counts.context_requests,
                counts.generation_requests,
                snapshot.paused,
                counts.context_tokens,
                0,
                counts.generated_tokens / max(1, counts.generation_requests),
            ),
            specdec_stats=_spec_stats(counts),
        )


def _resident() -> int:
    """How many bytes of memory this process has now; where that cannot be read, the most that it had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # There is no descriptor left.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _spec_stats(counts: IterationCounts) -> SpecDecodingStats | None:
    if not counts.drafting:
        return None
    length = 1 + counts.accepted / counts.drafting
    share = counts.drafting_seconds / max(counts.seconds, 1e-9)
    return SpecDecodingStats(
        counts.drafted, counts.accepted, counts.drafting, length, counts.drafting_seconds * 1000, share
    )


def _request_stats(task: Task, scheduled: bool) -> RequestStats:
    first = task.group.sequences[0]
    return RequestStats(
        id=task.id,
        stage=task.stage,
        # What has ended holds nothing any more, and what was paused is read again.
        context_prefill_position=len(task.request.input_token_ids) if task.started else first.computed,
        num_generated_tokens=sum(sequence.generated for sequence in task.group.sequences),
        avg_num_decoded_tokens_per_iter=first.generated / max(1, task.iterations),
        scheduled=scheduled,
        paused=task.paused,
        alloc_total_blocks_per_request=task.blocks.allocated,
        alloc_new_blocks_per_request=task.blocks.allocated,
        reused_blocks_per_request=task.blocks.reused,
        missed_blocks_per_request=task.blocks.missed,
        kv_cache_hit_rate_per_request=task.blocks.hit_rate,
    )
