"""Who may import whom: the package only ``repoagent.api``, a format its reader of JSON alone and no other format."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "repoagent_decrypt"
FORMATS = {"age", "jwe", "tink"}
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}" if node.module == "repoagent.api" else node.module or ""


@pytest.mark.parametrize("name", FILES)
def test_only_the_agents_interface_of_the_project_is_imported(name: str) -> None:
    folder = name.partition("/")[0]
    for module in imported(PACKAGE / name):
        if module.split(".")[0] == "repoagent":
            assert module.startswith("repoagent.api")
            assert folder not in FORMATS or module.startswith("repoagent.api.read_json")
        if folder in FORMATS and module.startswith("repoagent_decrypt"):
            assert module.split(".")[1] in {folder, "files"}
        if folder == "files" and module.startswith("repoagent_decrypt"):
            assert module.split(".")[1] in {"files"}
