"""``--repoagent-directory`` and ``--repoagent-from-directory``: where a command finds agents, as the server does."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from repoagent.loader.discovery import AgentRegistry

__all__ = ["agent_flags", "agents_from_directory", "registry_of"]

_F = TypeVar("_F", bound=Callable[..., Any])

agents_from_directory: Final = click.option(
    "--repoagent-from-directory",
    "repoagents_from_directory",
    multiple=True,
    metavar="NAME",
    help="An agent to take from there, though a package offers it too; repeat for more.",
)


def agent_flags(command: _F) -> _F:
    """Give ``command`` both flags."""
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
