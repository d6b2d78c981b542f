"""What one version of a model has done so far, and its form in Triton's statistics JSON.

All durations are nanoseconds of ``time.monotonic_ns``. Requests are put aside and added up several at a time.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from repoagent.serving.measuring.latencies import Latencies, Recent

_RECENT: Final = 64
"""How many requests are put aside before they are added to the counters."""


class FailureReason(enum.Enum):
    """Why a request failed; the values are those of Triton's ``nv_inference_request_failure`` label."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class ExecutionTimes(NamedTuple):
    """Moments of an execution, the same for all its requests: begun, inputs ready, outputs computed, answers made."""

    start_ns: int
    input_end_ns: int
    output_start_ns: int
    end_ns: int


class Durations(NamedTuple):
    """Nanoseconds of the parts of a request, or of several together."""

    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    @classmethod
    def of(cls, arrival_ns: int, times: ExecutionTimes) -> "Durations":
        """Those of a request that came at ``arrival_ns``."""
        start_ns, input_end_ns, output_start_ns, end_ns = times
        return cls(
            start_ns - arrival_ns, input_end_ns - start_ns, output_start_ns - input_end_ns, end_ns - output_start_ns
        )

    def plus(self, other: "Durations") -> "Durations":
        return Durations(*(one + more for one, more in zip(self, other, strict=True)))


@dataclass(slots=True)
class _Batch:
    count: int = 0
    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        return {
            "batch_size": batch_size,
            "compute_input": _entry(self.count, self.compute_input),
            "compute_infer": _entry(self.count, self.compute_infer),
            "compute_output": _entry(self.count, self.compute_output),
        }


_PARTS: Final = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
"""What is counted of the answers number N of a decoupled model. Each part is a count and nanoseconds, one behind the
other in one list: a stream has thousands of answers, and is counted at each of them."""
_PLACES: Final = {part: 2 * place for place, part in enumerate(_PARTS)}


@dataclass(slots=True)
class StatisticsSnapshot:
    """The counters that metrics are made of, at one moment. Durations are nanoseconds."""

    success: int = 0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys((one.value for one in FailureReason), 0))
    inference_count: int = 0
    execution_count: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    cache_hit_ns: int = 0
    cache_miss_ns: int = 0
    recent: Recent | None = None
    """How long the latest requests took, where that is kept."""


class ModelStatistics:
    """Counters of one version of one model. Every method may be called from any thread.

    ``latencies`` gets single requests, too; None where they are not wanted.
    """

    def __init__(self, latencies: Latencies | None = None) -> None:
        self._lock = threading.Lock()
        self._latencies = latencies
        self._last_inference_ms = 0
        self._now = StatisticsSnapshot()
        self._fail_ns = 0
        self._batches: dict[int, _Batch] = {}
        self._responses: dict[int, list[int]] = {}
        """By number: see ``_PARTS``."""
        self._recent: deque[tuple[int, int, ExecutionTimes]] = deque()

    def record(self, batch_size: int, arrival_ns: int, times: ExecutionTimes) -> None:
        """Count one request that succeeded and was executed by itself, as a batch of ``batch_size``."""
        # On the way of every request: adding up many at once costs a tenth of adding each of them.
        self._recent.append((batch_size, arrival_ns, times))
        if len(self._recent) >= _RECENT:
            with self._lock:
                self._add_recent()
        if self._latencies is not None:
            self._latencies.add(times.end_ns - arrival_ns, *Durations.of(arrival_ns, times))

    def _add_recent(self) -> None:
        """Add what :meth:`record` has put aside. Call it first, with the lock, before reading the counters."""
        groups: dict[int, list[tuple[int, ExecutionTimes]]] = {}
        for _ in range(len(self._recent)):
            batch_size, arrival_ns, times = self._recent.popleft()
            groups.setdefault(batch_size, []).append((arrival_ns, times))
        for batch_size, group in groups.items():
            count = len(group)
            sums = ExecutionTimes(*map(sum, zip(*(times for _, times in group), strict=True)))
            self._add_success(batch_size * count, sum(arrival_ns for arrival_ns, _ in group), sums, count)
            self._add_execution(batch_size, sums, count)
            since_ns = time.monotonic_ns() - group[-1][1].end_ns
            self._last_inference_ms = max(self._last_inference_ms, (time.time_ns() - since_ns) // 1_000_000)

    def record_success(self, batch_size: int, arrival_ns: int, times: ExecutionTimes) -> None:
        """Count one request that succeeded as part of an execution that is counted by :meth:`record_execution`."""
        with self._lock:
            self._add_success(batch_size, arrival_ns, times)
        if self._latencies is not None:
            self._latencies.add(times.end_ns - arrival_ns, *Durations.of(arrival_ns, times))

    def record_together(
        self, batch_size: int, inferences: int, arrivals_ns: Sequence[int], times: ExecutionTimes
    ) -> None:
        """Count one execution of ``batch_size`` inferences together, and the requests of it that succeeded.

        Those came at ``arrivals_ns`` and had ``inferences`` in all.
        """
        count = len(arrivals_ns)
        with self._lock:
            self._add_success(
                inferences, sum(arrivals_ns), ExecutionTimes(*(count * moment for moment in times)), count
            )
            self._add_execution(batch_size, times)
            self._last_inference_ms = time.time_ns() // 1_000_000
        if self._latencies is not None:
            for arrival_ns in arrivals_ns:
                self._latencies.add(times.end_ns - arrival_ns, *Durations.of(arrival_ns, times))

    def record_execution(self, batch_size: int, times: ExecutionTimes, count: int = 1) -> None:
        """Count one execution of ``batch_size`` inferences together; ``count`` 0: more time of one that is counted."""
        with self._lock:
            self._add_execution(batch_size, times, count)
            self._last_inference_ms = time.time_ns() // 1_000_000

    def record_failure(self, arrival_ns: int, end_ns: int, reason: FailureReason) -> None:
        """Count one request that was accepted and then failed."""
        with self._lock:
            self._fail_ns += end_ns - arrival_ns
            self._now.failures[reason.value] += 1

    def record_response(
        self, index: int, started_ns: int, end_ns: int, outcome: str, output_start_ns: int | None = None
    ) -> None:
        """Count answer ``index`` of a decoupled model; ``outcome``: success, fail, empty_response or cancel.

        From ``output_start_ns`` on the model made its outputs; None: that took no time.
        """
        computed_ns = end_ns if output_start_ns is None else output_start_ns
        with self._lock:
            entry = self._responses.get(index)
            if entry is None:
                entry = self._responses[index] = [0] * (2 * len(_PARTS))
            if outcome != "cancel":
                entry[0] += 1
                entry[1] += computed_ns - started_ns
            if outcome in ("success", "fail"):
                entry[2] += 1
                entry[3] += end_ns - computed_ns
            place = _PLACES[outcome]
            entry[place] += 1
            entry[place + 1] += end_ns - started_ns

    def record_first_response(self, duration_ns: int) -> None:
        """A decoupled model has sent its first response, so long after the request came."""
        if self._latencies is not None:
            self._latencies.add_first_response(duration_ns)

    def record_cache_hit(self, arrival_ns: int, lookup_ns: int, end_ns: int) -> None:
        """Count one request that the response cache answered; the lookup took ``lookup_ns``."""
        with self._lock:
            self._now.success += 1
            self._now.request_ns += end_ns - arrival_ns
            self._now.cache_hits += 1
            self._now.cache_hit_ns += lookup_ns
        if self._latencies is not None:
            self._latencies.add(end_ns - arrival_ns, 0)
            self._latencies.add_lookup("cache_hit", lookup_ns)

    def record_cache_miss(self, duration_ns: int) -> None:
        """Add the time that one fruitless lookup and the insertion took to a request counted elsewhere."""
        with self._lock:
            self._now.request_ns += duration_ns
            self._now.cache_misses += 1
            self._now.cache_miss_ns += duration_ns
        if self._latencies is not None:
            self._latencies.add_lookup("cache_miss", duration_ns)

    def record_composed(self, batch_size: int, request_ns: int, spent: Durations) -> None:
        """Count one request that an ensemble answered; ``spent`` is that of its members, added up."""
        queue_ns, input_ns, infer_ns, output_ns = spent
        with self._lock:
            # Steps may run at once, so the parts need not add up to the whole: each is counted for itself.
            self._add_success(batch_size, 0, ExecutionTimes(0, 0, 0, request_ns))
            self._now.compute_output_ns += output_ns - request_ns
            self._now.queue_ns += queue_ns
            self._now.compute_input_ns += input_ns
            self._now.compute_infer_ns += infer_ns
            self._add_execution(
                batch_size, ExecutionTimes(0, input_ns, input_ns + infer_ns, input_ns + infer_ns + output_ns)
            )
            self._last_inference_ms = time.time_ns() // 1_000_000
        if self._latencies is not None:
            self._latencies.add(request_ns, *spent)

    def _add_success(self, inferences: int, arrival_ns: int, times: ExecutionTimes, count: int = 1) -> None:
        """Add ``count`` requests; the moments may be sums, as only their differences are looked at."""
        now = self._now
        now.inference_count += inferences
        now.success += count
        now.request_ns += times.end_ns - arrival_ns
        now.queue_ns += times.start_ns - arrival_ns
        now.compute_input_ns += times.input_end_ns - times.start_ns
        now.compute_infer_ns += times.output_start_ns - times.input_end_ns
        now.compute_output_ns += times.end_ns - times.output_start_ns

    def _add_execution(self, batch_size: int, times: ExecutionTimes, count: int = 1) -> None:
        self._now.execution_count += count
        batch = self._batches.get(batch_size)
        if batch is None:
            batch = self._batches[batch_size] = _Batch()
        batch.count += count
        batch.compute_input += times.input_end_ns - times.start_ns
        batch.compute_infer += times.output_start_ns - times.input_end_ns
        batch.compute_output += times.end_ns - times.output_start_ns

    @property
    def last_inference_ms(self) -> int:
        """When the latest execution ended, in milliseconds since 1970; 0 before the first."""
        with self._lock:
            self._add_recent()
            return self._last_inference_ms

    def snapshot(self) -> StatisticsSnapshot:
        """All counters at one moment."""
        with self._lock:
            self._add_recent()
            recent = None if self._latencies is None else self._latencies.recent()
            return replace(self._now, failures=dict(self._now.failures), recent=recent)

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """One entry of ``model_stats`` in Triton's statistics JSON."""
        with self._lock:
            self._add_recent()
            now = self._now
            executed = now.success - now.cache_hits
            return {
                "name": name,
                "version": str(version),
                "last_inference": self._last_inference_ms,
                "inference_count": now.inference_count,
                "execution_count": now.execution_count,
                "inference_stats": {
                    "success": _entry(now.success, now.request_ns),
                    "fail": _entry(sum(now.failures.values()), self._fail_ns),
                    "queue": _entry(now.success, now.queue_ns),
                    "compute_input": _entry(executed, now.compute_input_ns),
                    "compute_infer": _entry(executed, now.compute_infer_ns),
                    "compute_output": _entry(executed, now.compute_output_ns),
                    "cache_hit": _entry(now.cache_hits, now.cache_hit_ns),
                    "cache_miss": _entry(now.cache_misses, now.cache_miss_ns),
                },
                "response_stats": {
                    str(index): {part: _entry(*entry[place : place + 2]) for part, place in _PLACES.items()}
                    for index, entry in sorted(self._responses.items())
                },
                "batch_stats": [batch.to_dict(size) for size, batch in sorted(self._batches.items())],
                "memory_usage": [],
            }


def _entry(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
