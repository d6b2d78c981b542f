"""The hooks that a plug-in module can implement, and the decorator that marks an implementation.

A package offers such a module through the entry-point group ``repoagent.plugins``::

    # pyproject.toml
    [project.entry-points."repoagent.plugins"]
    mine = "my_package.plugin"

    # my_package/plugin.py
    from repoagent.api.hooks import hookimpl

    @hookimpl
    def load_finished(event):
        print(event.model, event.outcome)

Two kinds of hook, two rules. *Registrations* are called once, at start; two plug-ins that claim one name are an error
that names both. *Observers* receive what happened; they run in order on a separate thread, and an exception in
one is logged. An observer cannot refuse anything: that is what agents are for.

Plug-in modules are imported at every start of the program, also for ``--help``: keep them light and name the real
code by ``"package.module:attribute"``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pluggy

from repoagent.api.report import Action, LoadReport

HOOKS_VERSION: Final = 1
PROJECT: Final = "repoagent"
hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A sub-command of ``repoagent``: where its click command is, and its line in ``--help``."""

    target: str
    help: str


@dataclass(frozen=True, slots=True)
class ActionEvent:
    """One call of one agent. ``seconds`` is wall time; ``error`` is None if it did not raise."""

    model: str
    agent: str
    index: int
    action: Action
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """The start or the end of a load or an unload. ``outcome`` is "started", "loaded", "failed" or "unloaded".

    ``seconds`` is how long the load took (the unload, for "unloaded"); ``report`` is None at the start.
    """

    model: str
    outcome: str
    seconds: float
    error: str | None
    report: LoadReport | None


# The bodies never run: pluggy reads only names and parameters.


@hookspec
def register_backends() -> Mapping[str, str]:
    """Name of a backend -> ``"module:attribute"`` of its factory. *Registration, versionadded 1.*"""
    return {}


@hookspec
def register_key_providers() -> Mapping[str, str]:
    """URI scheme -> ``"module:attribute"`` of a callable ``(uri: str) -> bytes``. *Registration, versionadded 1.*"""
    return {}


@hookspec
def register_converters() -> Mapping[tuple[str, str], str]:
    """``(from, to)`` -> ``"module:attribute"`` of a ``repoagent.api.Converter``. *Registration, versionadded 1.*"""
    return {}


@hookspec
def register_filesystems() -> Mapping[str, str]:
    """URL protocol -> ``"module:attribute"`` of an fsspec filesystem class. *Registration, versionadded 1.*"""
    return {}


@hookspec
def register_commands() -> Mapping[str, CommandSpec]:
    """Name of a sub-command of ``repoagent`` -> where it is. *Registration, versionadded 1.*"""
    return {}


@hookspec
def register_attestors() -> Mapping[str, str]:
    """Name -> ``"module:attribute"`` of a factory ``(AttestorOptions) -> Attestor``. *Registration, versionadded 1.*"""
    return {}


@hookspec
def load_started(event: LoadEvent) -> None:
    """A load of ``event.model`` begins. *Observer, versionadded 1.*"""


@hookspec
def action_finished(event: ActionEvent) -> None:
    """An agent returned from, or raised in, one action. *Observer, versionadded 1.*"""


@hookspec
def load_finished(event: LoadEvent) -> None:
    """A load ended; ``event.report`` has every agent and action. *Observer, versionadded 1.*"""


@hookspec
def unload_finished(event: LoadEvent) -> None:
    """A model is gone. *Observer, versionadded 1.*"""
