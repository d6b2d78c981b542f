"""Flags that several commands have: where agents are found, settings of backends, limits."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from repoagent.limits import Limits

if TYPE_CHECKING:
    from repoagent.loader.discovery import AgentRegistry

__all__ = [
    "PAIR",
    "BackendSetting",
    "agent_flags",
    "agents_from_directory",
    "limit_flags",
    "merge_settings",
    "registry_of",
    "take_limits",
]


_F = TypeVar("_F", bound=Callable[..., Any])

BackendSetting = tuple[str, str, str]
"""The name of a backend ("" for all), of a setting, and its value."""

_PAIR: Final = re.compile(r"(?:(?P<backend>[^,=]*),)?(?P<setting>[^,=]+)=(?P<value>.*)", re.DOTALL)


class _Pair(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``BACKEND,SETTING=VALUE``, or ``SETTING=VALUE`` for all backends."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BackendSetting:
        if isinstance(value, tuple):
            return value
        match = _PAIR.fullmatch(str(value))
        if match is None:
            # Not repeated, as it may be a secret.
            self.fail("the value is not of the form <backend>,<setting>=<value>", param, ctx)
        return match["backend"] or "", match["setting"], match["value"]


PAIR: Final = _Pair()


def merge_settings(settings: tuple[BackendSetting, ...]) -> dict[str, dict[str, str]]:
    """Settings by backend and name; the last value wins."""
    merged: dict[str, dict[str, str]] = {}
    for backend, name, value in settings:
        merged.setdefault(backend, {})[name] = value
    return merged


def limit_flags(command: _F) -> _F:
    """Give ``command`` a flag for each field of :class:`repoagent.limits.Limits`."""
    for one in reversed(fields(Limits)):
        kind = click.IntRange(one.metadata["least"], None)
        command = click.option(
            Limits.flag(one.name), type=kind, default=one.default, show_default=True, help=one.metadata["help"]
        )(command)
    return command


def take_limits(values: dict[str, Any]) -> Limits:
    """Take the values of the flags out of ``values``."""
    return Limits(**{one.name: values.pop(f"limit_{one.name}") for one in fields(Limits)})


agents_from_directory: Final = click.option(
    "--repoagent-from-directory",
    "repoagents_from_directory",
    multiple=True,
    metavar="NAME",
    help="An agent to take from there, though a package offers it too; repeat for more.",
)


def agent_flags(command: _F) -> _F:
    """Give ``command`` ``--repoagent-directory`` and ``--repoagent-from-directory``."""
    directory = click.option(
        "--repoagent-directory",
        type=click.Path(path_type=Path),
        help="Directory of further agents (NAME/agent.py). [default: /opt/tritonserver/repoagents, if it exists]",
    )
    return directory(agents_from_directory(command))


def registry_of(repoagent_directory: Path | None, repoagents_from_directory: tuple[str, ...]) -> "AgentRegistry":
    """The agents that the flags mean."""
    from repoagent.loader.agent_directory import DEFAULT_DIRECTORY
    from repoagent.loader.discovery import AgentRegistry

    return AgentRegistry(repoagent_directory or DEFAULT_DIRECTORY, preferred=repoagents_from_directory)
