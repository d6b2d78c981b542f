"""The page about the structure names what exists: files, folders, classes, the order of imports."""

import configparser
import re
from pathlib import Path

import pytest

_TREE = Path(__file__).parents[2]
_PACKAGES = {
    "repoagent": _TREE / "repoagent",
    "repoagent_convert": _TREE / "agents" / "convert" / "repoagent_convert",
    "repoagent_llm": _TREE / "llm" / "repoagent_llm",
    "repoagent_server": _TREE / "server_stub" / "repoagent_server",
}
_AGENTS = sorted(
    file.parent
    for file in (*_TREE.glob("agents/*/*/__init__.py"), *_TREE.glob("contrib/*/*/__init__.py"))
    if file.parent.name != "tests"
)
_ROOTS = [
    _TREE / "repoagent",
    *_AGENTS,
    _TREE / "agents" / "convert",
    _TREE / "capi",
    _TREE / "llm",
    _TREE / "repoagent" / "serving",
    _TREE / "repoagent" / "serving" / "backends",
    _TREE / "repoagent" / "serving" / "backends" / "python",
    _TREE / "repoagent" / "serving" / "backends" / "python" / "process",
    _TREE / "repoagent" / "serving" / "scheduling",
    _TREE / "repoagent" / "storage",
    _TREE / "server_stub" / "repoagent_server",
    _TREE / "server_stub",
    _TREE / "docs",
    _TREE,
]
_FOREIGN = {"model.py"}
"""Files that the page names, which are not the project's."""


@pytest.fixture(scope="module")
def page() -> str:
    return (_TREE / "docs" / "structure.md").read_text()


def _packages(root: Path) -> list[Path]:
    return sorted(file.parent for file in root.rglob("__init__.py") if "templates" not in file.parts)


def test_every_file_that_it_names_is_there(page: str) -> None:
    named = set(re.findall(r"`([\w/.]+\.(?:py|proto|svg))`", page))
    assert len(named) > 50
    assert {name for name in named if not any((root / name).is_file() for root in _ROOTS)} == _FOREIGN


def test_every_folder_that_it_names_is_there(page: str) -> None:
    named = set(re.findall(r"`([\w/.]+)/`", page))
    assert len(named) > 40
    assert [name for name in sorted(named) if not any((root / name).is_dir() for root in _ROOTS)] == []


@pytest.mark.slow
def test_every_class_whose_lock_it_names_is_there(page: str) -> None:
    table = page.split("## Locks")[1].split("\n## ")[0]
    named = set(re.findall(r"`([A-Z]\w+)(?:\._\w+)?`", table))
    code = "\n".join(file.read_text() for root in _PACKAGES.values() for file in sorted(root.rglob("*.py")))
    assert len(named) > 15
    assert [name for name in sorted(named) if not re.search(rf"^class {name}\b", code, re.MULTILINE)] == []


def test_it_has_a_row_for_every_folder(page: str) -> None:
    rows = re.findall(r"^\| `([\w/.]+)/` \|", page, re.MULTILINE)
    folders = {folder for root in _PACKAGES.values() for folder in _packages(root) if folder != root}
    assert [str(folder) for folder in sorted(folders) if not any(folder.match(f"*/{row}") for row in rows)] == []


def test_it_has_a_row_for_every_file_at_the_ground(page: str) -> None:
    files = [file.name for file in sorted((_TREE / "repoagent").glob("*.py")) if not file.name.startswith("__")]
    assert [name for name in files if f"| `repoagent/{name}` |" not in page] == []


def test_what_a_row_of_changes_quotes_stands_in_a_file_that_it_leads_to(page: str) -> None:
    """``Retry-After``, ``default_priority_level``: who follows the row finds the word there."""
    wrong, quoted = [], 0
    for row in page.split("## Where to change what")[1].split("\n## ")[0].splitlines():
        wanted, _, places = row.strip("| ").partition(" | ")
        names = re.findall(r"`([\w/.]+\.(?:py|proto|h))`", places)
        found = [root / name for name in names for root in _ROOTS if (root / name).is_file()]
        words = re.findall(r"`([^`]+)`", wanted) if found else []
        quoted += len(words)
        wrong += [(word, names) for word in words if not any(word in file.read_text() for file in found)]
    assert quoted > 10
    assert wrong == []


def test_it_names_every_agent(page: str) -> None:
    row = next(line for line in page.splitlines() if line.startswith("| `agents/` |"))
    agents = sorted(file.parent.name for file in (_TREE / "agents").glob("*/pyproject.toml"))
    assert [name for name in agents if f"`{name}`" not in row] == []


@pytest.mark.parametrize("package", _AGENTS, ids=lambda package: package.name)
def test_it_names_every_file_of_an_agent(page: str, package: Path) -> None:
    row = next(line for line in page.splitlines() if line.startswith(f"| `{package.name}` |"))
    named = {name.rstrip("/").split("/")[-1] for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)}
    found = {each.name for each in package.iterdir() if each.suffix == ".py" or (each / "__init__.py").is_file()}
    evident = {"__init__.py", "agent.py", "cli.py", "cli", "plugin.py"}
    assert {name for name in found - evident if not name.endswith("_options.py")} - named == set()


@pytest.mark.parametrize(
    ("label", "contract"),
    [
        ("core", "layers"),
        ("serving", "serving"),
        ("storage", "storage"),
        ("executor", "executor_folders"),
        ("front ends", "front_ends"),
    ],
)
def test_its_order_of_folders_is_the_one_that_lint_imports_checks(page: str, label: str, contract: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(_TREE / ".importlinter")
    layers = contracts[f"importlinter:contract:{contract}"]["layers"].split("\n")
    checked = [{name.split(".")[-1] for name in re.split("[ |:]+", layer)} for layer in reversed(layers) if layer]
    order = re.search(rf"^{label}: (.*(?:\n {{2,}}.*)*)", page, re.MULTILINE)
    assert order
    stated = [set(re.split(r"[\s,]+", step.strip())) for step in order[1].replace("<- the root", "").split("<-")]
    assert stated == checked[: len(stated)]
    assert set().union(*checked[len(stated) :]) <= {"assembly", "core", "queries", "reception", "routing"}
