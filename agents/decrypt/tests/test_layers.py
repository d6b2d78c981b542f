"""Who may import whom: the package only ``repoagent.api``, the age library nothing of the project."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "repoagent_decrypt"
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("name", FILES)
def test_only_the_agents_interface_of_the_project_is_imported(name: str) -> None:
    for module in imported(PACKAGE / name):
        if module.split(".")[0] == "repoagent":
            assert module.startswith("repoagent.api")
            assert not name.startswith("age/")
        if name.startswith("age/") and module.startswith("repoagent_decrypt"):
            assert module.startswith("repoagent_decrypt.age")
