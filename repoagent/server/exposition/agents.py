"""Our metrics: what agents do, how long it takes, how loads end. An observer, as any plug-in can be one."""

import threading
from collections import Counter
from collections.abc import Iterable

from repoagent.api.hooks import ActionEvent, LoadEvent, hookimpl
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring.prometheus import Family


class AgentMetrics:
    """Counts events of the loader. Register it with the plug-in manager of the core."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._seconds: Counter[tuple[str, str, str]] = Counter()
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._loads: Counter[str] = Counter()
        self._load_failures: Counter[str] = Counter()
        self._load_seconds: dict[str, float] = {}

    @hookimpl
    def action_finished(self, event: ActionEvent) -> None:
        key = (event.model, event.agent, event.action.name)
        with self._lock:
            self._calls[key] += 1
            self._seconds[key] += event.seconds  # type: ignore[assignment]  # a Counter adds floats as well
            self._failures[key] += event.error is not None

    @hookimpl
    def load_finished(self, event: LoadEvent) -> None:
        with self._lock:
            if event.outcome == "loaded":
                self._loads[event.model] += 1
                self._load_seconds[event.model] = event.seconds
            elif event.outcome == "failed":
                self._load_failures[event.model] += 1

    def families(self) -> Iterable[Family]:
        """Everything counted so far."""
        with self._lock:
            return [
                _by_action("repoagent_action_seconds_total", "Seconds spent in an agent's action", self._seconds),
                _by_action("repoagent_action_calls_total", "Calls of an agent's action", self._calls),
                _by_action("repoagent_action_failures_total", "Calls of an agent's action that failed", self._failures),
                _by_model("repoagent_loads_total", "counter", "Loads that succeeded", self._loads),
                _by_model("repoagent_load_failures_total", "counter", "Loads that failed", self._load_failures),
                _by_model(
                    "repoagent_load_seconds", "gauge", "How long the last successful load took", self._load_seconds
                ),
            ]


class WorkspaceMetrics:
    """Whether loads can have private directories; looking makes again what was removed."""

    def __init__(self, core: ServingCore) -> None:
        self._core = core

    def families(self) -> Iterable[Family]:
        """One gauge: 1 if they can."""
        text = "Whether loads can have directories in the workspace (1) or not (0)"
        return [Family("repoagent_workspace_usable", "gauge", text, [((), int(self._core.workspace_fault is None))])]


def _by_action(name: str, text: str, counts: Counter[tuple[str, str, str]]) -> Family:
    samples = [([("model", m), ("agent", a), ("action", c)], value) for (m, a, c), value in sorted(counts.items())]
    return Family(name, "counter", text, samples)


def _by_model(name: str, kind: str, text: str, values: dict[str, int] | dict[str, float]) -> Family:
    return Family(name, kind, text, [([("model", model)], value) for model, value in sorted(values.items())])
