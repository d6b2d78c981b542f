"""The start of a server: the models that it loads, the error when they fail, and what it repeats from then on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from repoagent.errors import InternalError
from repoagent.serving.lifecycle.named_loads import NamedLoads
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.options import ControlMode, CoreOptions
from repoagent.serving.repositories.poller import Poller
from repoagent.serving.repositories.repository_set import RepositorySet

__all__ = ["AGAIN_SECONDS", "pollers", "startup_failure", "startup_names"]

AGAIN_SECONDS: Final = 2.0
"""Seconds between two tries to start, while a repository cannot be listed."""
_QUICKEST_LOOK: Final = 0.05
_SLOWEST_LOOK: Final = 30.0
"""Seconds between two looks for idle models."""
_REASONS: Final = 3
"""How many models' reasons the error of a start has."""


def startup_names(options: CoreOptions, repositories: RepositorySet, loads: NamedLoads) -> Sequence[str]:
    """The models to load at the start.

    Raises:
        RepoAgentError: a repository cannot be listed.
    """
    everything = repositories.names()  # Asked for in any case: a wrong path should show now.
    if options.control_mode is not ControlMode.EXPLICIT or "*" in options.startup_models:
        return everything
    named = [model for name in options.startup_models for model in loads.ids(name)]
    return list(dict.fromkeys(named))


def startup_failure(failed: Mapping[str, str]) -> InternalError:
    """The error of a start that ``failed`` models end, with the first reasons: an embedded server may have no log."""
    reasons = [text.replace("failed to load ", "", 1) for text in failed.values()][:_REASONS]
    if len(failed) > _REASONS:
        reasons.append(f"{', '.join([*failed][_REASONS:])} failed too, see the log for the reasons")
    return InternalError(f"failed to load all models: {'; '.join(reasons)}")


def pollers(options: CoreOptions, poll: Callable[[], None], demand: OnDemand) -> list[Poller]:
    """What the server does again and again while it is ready."""
    found = []
    if options.control_mode is ControlMode.POLL:
        found.append(Poller(poll, options.poll_seconds))
    idle = options.unload_idle_seconds
    if idle is not None:
        every = min(max(idle / 4, _QUICKEST_LOOK), _SLOWEST_LOOK)
        found.append(Poller(lambda: demand.unload_idle(idle), every, "unloading idle models"))
    return found
