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
    "contract": {"AgentContract"},
    "faults": {"STORAGE_POINTS", "FaultInjection", "InjectedError", "Point"},
    "harness": {"AgentHarness", "FakeKeys", "Outcome"},
    "killing": {"KillHarness"},
    "remote": {"remote_source"},
    "repository": {"ModelRepo", "write_files"},
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
