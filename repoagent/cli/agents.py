"""``repoagent agents list | inspect | new``: what can be used here, what one agent is, and the start of another."""

import json
import re
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click

from repoagent.cli.flags import agent_flags, registry_of
from repoagent.cli.loading import filter_log
from repoagent.errors import AgentError, AlreadyExistsError, InvalidArgumentError, UnavailableError
from repoagent.installing import install_hint

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_LONGEST: Final = 40
_PLACEHOLDER: Final = re.compile(r"@([a-z]+)@")

TEMPLATES: Final[Mapping[str, str]] = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/test.yml": "test.yml.txt",
    ".github/workflows/release.yml": "release.yml.txt",
    "@module@/__init__.py": "init.py.txt",
    "@module@/agent.py": "agent.py.txt",
    "@module@/py.typed": "py.typed.txt",
    "tests/test_contract.py": "test_contract.py.txt",
}
"""File of the package -> its template; placeholders are written ``@name@``, in both."""


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called in the package of the agent ``name``."""

    name: str

    @classmethod
    def of(cls, name: str, taken: Iterable[str] = ()) -> "Names":
        """Check ``name``. Raises ``InvalidArgumentError`` if an agent, a package or a class cannot have it, and
        ``AlreadyExistsError`` if it is among ``taken``."""
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise InvalidArgumentError(
                f"'{name}' cannot be the name of an agent: expected lower-case letters and digits, beginning with a "
                f"letter, words joined by single '-' or '_', at most {_LONGEST} characters, for example 'scan-weights'"
            )
        if name in taken:
            raise AlreadyExistsError(f"'{name}' is the name of another agent; choose another one")
        return cls(name)

    @property
    def distribution(self) -> str:
        """What is installed with pip."""
        return f"repoagent-agent-{self.name.replace('_', '-')}"

    @property
    def module(self) -> str:
        """What is imported."""
        return self.distribution.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The agent's class."""
        return "".join(word.capitalize() for word in re.split("[-_]", self.name)) + "Agent"

    def fill(self, template: str) -> str:
        """Put the names in the place of ``@name@``, ``@distribution@``, ``@module@`` and ``@class@``."""
        values = {
            "name": self.name,
            "distribution": self.distribution,
            "module": self.module,
            "class": self.class_name,
        }
        return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def write_package(names: Names, directory: Path) -> list[Path]:
    """Write the package of the agent ``names`` to ``directory``, which must not exist; return its files.

    All is written beside it and renamed, so the directory is whole or absent.

    Raises:
        AlreadyExistsError: there is something at ``directory``.
        UnavailableError: it cannot be written.
    """
    if directory.exists() or directory.is_symlink():
        raise AlreadyExistsError(f"{directory} exists already and is left alone; name another with --directory")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-agent-", dir=directory.parent) as scratch:
            work = Path(scratch, "package")
            _fill_in(names, work)
            work.rename(directory)
    except OSError as error:
        raise UnavailableError(f"cannot write {directory}: {error.strerror}") from error
    return [directory / names.fill(path) for path in TEMPLATES]


def _fill_in(names: Names, directory: Path) -> None:
    templates = files("repoagent.cli") / "templates" / "agent"
    for path, template in TEMPLATES.items():
        target = directory / names.fill(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(names.fill((templates / template).read_text(encoding="utf-8")), encoding="utf-8")


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
    filter_log(lambda _record: False)  # What goes wrong is reported below, once.
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
