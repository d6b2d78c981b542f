"""The kit for authors of agents: a harness over the real loader, faults on demand, and a contract to inherit.

Installing ``repoagent-core`` makes the fixtures of :mod:`repoagent.testing.plugin` known to pytest. Nothing is imported
before a test asks for it.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from repoagent.testing.contract import AgentContract
    from repoagent.testing.faults import STORAGE_POINTS, FaultInjection, InjectedError, Point
    from repoagent.testing.harness import AgentHarness, FakeKeys, Outcome
    from repoagent.testing.killing import KillHarness
    from repoagent.testing.remote import remote_source
    from repoagent.testing.repository import ModelRepo, write_files

__all__ = [
    "STORAGE_POINTS",
    "AgentContract",
    "AgentHarness",
    "FakeKeys",
    "FaultInjection",
    "InjectedError",
    "KillHarness",
    "ModelRepo",
    "Outcome",
    "Point",
    "remote_source",
    "write_files",
]

_HOMES: Final = {
    "STORAGE_POINTS": "faults",
    "AgentContract": "contract",
    "AgentHarness": "harness",
    "FakeKeys": "harness",
    "FaultInjection": "faults",
    "InjectedError": "faults",
    "KillHarness": "killing",
    "ModelRepo": "repository",
    "Outcome": "harness",
    "Point": "faults",
    "remote_source": "remote",
    "write_files": "repository",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
