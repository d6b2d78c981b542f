"""``repoagent bridge install``: agents of this environment, laid out for a stock Triton."""

import shutil
import sys
from pathlib import Path

import click

from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent_capi import LIBRARY

_BRIDGE = LIBRARY.parent / "librepoagent_bridge.so"


@click.group()
def bridge() -> None:
    """Use agents of this environment in a stock Triton server."""


@bridge.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("names", nargs=-1, required=True)
def install(directory: Path, names: tuple[str, ...]) -> None:
    """Lay out DIRECTORY/NAME for each agent NAME.

    The agents must be installed. Give DIRECTORY to Triton's --repoagent-directory.
    """
    registry = AgentRegistry(None)
    for name in names:
        try:
            registry.load(name)
        except RepoAgentError as error:
            raise click.ClickException(str(error)) from error
    for name in names:
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(_BRIDGE, place / f"libtritonrepoagent_{name}.so")
        # The environment, not the interpreter behind its link: that one does not know the installed packages.
        (place / "environment").write_text(f"{sys.executable}\n", encoding="utf-8")
        click.echo(place)
