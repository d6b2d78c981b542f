"""The page that Prometheus fetches: read from the counters at the moment it is asked for."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.inference import ModelCounters, inference_families
from repoagent.server.exposition.machine import Machine
from repoagent.server.exposition.settings import MetricsSettings
from repoagent.server.exposition.text import Family, render
from repoagent.serving.measuring.custom_metrics import REGISTRY

__all__ = ["Exposition", "Source"]


class Source(Protocol):
    """Something that has metrics."""

    def families(self) -> Iterable[Family]:
        """Those of this moment."""


class Exposition:
    """Puts the page together. ``models`` gives the counters of the ready models; ``machine`` None leaves that out;
    ``settings`` select what is shown of latencies; ``others`` have metrics of their own."""

    def __init__(
        self,
        models: Callable[[], Sequence[ModelCounters]],
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
