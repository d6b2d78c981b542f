"""The page that Prometheus fetches: read from the counters at the moment it is asked for."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.inference import inference_families
from repoagent.server.exposition.settings import MetricsSettings
from repoagent.server.exposition.text import Family, render
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.queries import ModelMetrics


class Machine:
    """Reads ``proc``. How busy the processors are is measured between one reading and the next."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last = self._ticks()

    def families(self) -> Iterator[Family]:
        """The gauges; none if ``proc`` cannot be read."""
        memory = self._memory()
        if memory:
            total, free = memory["MemTotal"], memory["MemAvailable"]
            yield _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._busy())
            yield _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total)
            yield _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", total - free)
            yield _gauge("process_resident_memory_bytes", "Resident memory of the server, in bytes", self._resident())

    def _ticks(self) -> tuple[int, int]:
        """Idle and all clock ticks of the machine so far."""
        text = self._read("stat").partition("\n")[0]
        ticks = [int(number) for number in text.split()[1:]]
        return sum(ticks[3:5]), sum(ticks[:8])

    def _busy(self) -> float:
        (idle_before, all_before), self._last = self._last, self._ticks()
        idle, everything = self._last[0] - idle_before, self._last[1] - all_before
        return 1 - idle / everything if everything > 0 else 0.0

    def _memory(self) -> dict[str, int]:
        """Bytes by name."""
        lines = (line.partition(":") for line in self._read("meminfo").splitlines())
        return {name: int(rest.removesuffix(" kB")) * 1024 for name, _, rest in lines if rest.endswith(" kB")}

    def _resident(self) -> int:
        pages = self._read("self/statm").split()[1:2]
        return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii")
        except OSError:  # It is not there, or there is no descriptor left: then the other metrics are wanted.
            return ""


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [((), value)])


class Source(Protocol):
    """Something that has metrics."""

    def families(self) -> Iterable[Family]:
        """Those of this moment."""


class Exposition:
    """Puts the page together. ``models`` gives the counters of the ready models; ``machine`` None leaves that out;
    ``settings`` select what is shown of latencies; ``others`` have metrics of their own."""

    def __init__(
        self,
        models: Callable[[], Sequence[ModelMetrics]],
        agents: AgentMetrics,
        machine: Machine | None = None,
        *,
        settings: MetricsSettings = MetricsSettings(),  # noqa: B008 - frozen
        others: Sequence[Source] = (),
    ) -> None:
        self._models = models
        self._sources = (agents, *others)
        self._machine = machine
        self._settings = settings

    def text(self) -> str:
        """All metrics, those that models make themselves at the end, in Prometheus' text format."""
        families = [*inference_families(self._models(), self._settings)]
        for source in self._sources:
            families += source.families()
        if self._machine is not None:
            families += self._machine.families()
        return render(families) + REGISTRY.text()
