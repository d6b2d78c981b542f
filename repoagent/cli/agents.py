"""``repoagent agents list | inspect | new``: what can be used here, what one agent is, and the start of another."""

import json
import logging
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from repoagent.cli.agent_flags import agent_flags, registry_of
from repoagent.errors import AgentError
from repoagent.installing import install_hint

__all__ = ["agents"]


@click.group()
def agents() -> None:
    """List and inspect the agents that can be used here, and begin new ones."""


@agents.command("list")
@agent_flags
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_agents(as_json: bool, **flags: Any) -> None:
    """Show every agent, its origin and its state.

    It also shows the name, version and distribution. No agent's code is imported.
    """
    infos = registry_of(**flags).list()
    if as_json:
        click.echo(json.dumps([asdict(info) for info in infos], indent=2))
        return
    rows = [("NAME", "VERSION", "DISTRIBUTION", "ORIGIN", "STATE")]
    rows += [(i.name, i.version or "-", i.distribution or "-", i.origin, i.error or i.state) for i in infos]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]))
    if not infos:
        click.echo(f"(no agents; install one, for example {install_hint('repoagent-checksum')})", err=True)


@agents.command("inspect")
@click.argument("name")
@agent_flags
def inspect_agent(name: str, **flags: Any) -> None:
    """Import agent NAME and show what it is.

    That is where it comes from, its API version and its documentation.
    """
    logging.getLogger("repoagent.loader").addFilter(lambda _record: False)  # What goes wrong is reported below, once.
    try:
        details = registry_of(**flags).inspect(name)
    except AgentError as error:
        fault = error.__cause__
        place = _place_of(fault)
        reason = error.reason
        if place and isinstance(fault, SyntaxError):  # its own text ends with the last part of the place
            reason = reason.removesuffix(str(fault)) + (fault.msg or "")
        raise AgentError(name, f"{reason} ({place})" if place else reason) from error
    info = details.info
    lines = {
        "name": info.name,
        "origin": info.origin,
        "target": info.target,
        "distribution": " ".join(part for part in (info.distribution, info.version) if part) or "-",
        "class": details.class_name,
        "api version": details.api_version,
        "guard": "yes" if details.guard else "no",
        "file": details.module_file or "-",
        "summary": details.metadata.get("Summary", "-"),
        "home page": details.metadata.get("Home-page", "-"),
    }
    for label, value in lines.items():
        click.echo(f"{label + ':':14}{value}")
    click.echo(f"\n{details.docstring or '(its class has no documentation)'}")


@agents.command("new")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to write it; must not exist.  [default: ./repoagent-agent-NAME]",
)
def new_agent(name: str, directory: Path | None) -> None:
    """Write the package of a new agent NAME.

    The package has a class, a README, a contract test and workflows for CI.

    It can be installed, used and tested as it is. Nothing that exists is overwritten.
    """
    from repoagent.cli.new_agent import Names, write_package
    from repoagent.loader.discovery import OFFICIAL_AGENTS

    names = Names.of(name, taken={*OFFICIAL_AGENTS, *(info.name for info in registry_of(None, ()).list())})
    target = directory or Path(names.distribution)
    for path in write_package(names, target):
        click.echo(path)
    click.echo(f"\nNext:\n  cd {target}\n  pip install -e '.[test]'\n  repoagent agents list\n  pytest")


def _place_of(fault: BaseException | None) -> str:
    """The file and line where ``fault`` was raised; "" if it has none."""
    if isinstance(fault, SyntaxError) and fault.filename:
        return f"{fault.filename}, line {fault.lineno}"
    frames = traceback.extract_tb(fault.__traceback__) if fault is not None else []
    named = [frame for frame in frames if not frame.filename.startswith("<")]  # not those of the import itself
    return f"{named[-1].filename}, line {named[-1].lineno}" if named else ""
