"""Writing the package of a new agent from templates."""

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError

__all__ = ["TEMPLATES", "Names", "write_package"]

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
        """Check ``name``.

        Raises:
            InvalidArgumentError: it cannot be the name of an agent, a package and a class.
            AlreadyExistsError: it is among ``taken``.
        """
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
