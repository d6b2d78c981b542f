"""The pages about the code name what exists: files, folders, classes, the order of imports; every file is named."""

import configparser
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_TREE = Path(__file__).parents[2]
_PACKAGES = {
    "repoagent": _TREE / "repoagent",
    "repoagent_convert": _TREE / "agents" / "convert" / "repoagent_convert",
    "repoagent_llm": _TREE / "llm" / "repoagent_llm",
    "repoagent_server": _TREE / "server_stub" / "repoagent_server",
}
_ROOTS = [
    _TREE / "repoagent",
    *sorted(file.parent for file in (*_TREE.glob("agents/*/*/__init__.py"),) if file.parent.name != "tests"),
    _TREE / "agents" / "convert",
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
_NAME = r"[\w./-]+\.(?:py|c|h|proto|ya?ml|service)|[\w./-]*/?Containerfile"


@pytest.fixture(scope="module")
def page() -> str:
    return (_TREE / "docs" / "structure.md").read_text()


@pytest.fixture(scope="module")
def internals() -> str:
    return (_TREE / "docs" / "internals.md").read_text()


def _rows(page: str) -> Iterator[tuple[Path, list[str]]]:
    """The folder of each row of the tables of files, and the names of files in it."""
    root = _TREE
    for line in page.split("## Changes that touch")[0].splitlines():
        if line.startswith("## "):
            place = re.search(r"`([\w/]+)/`$", line)
            root = _TREE / place[1] if place else _TREE
        elif row := re.fullmatch(r"\| `([\w./-]+)/` \| (.*) \|", line):
            yield root / row[1], re.findall(rf"`({_NAME})`", row[2])


def _product() -> list[Path]:
    """The files of the product: without tests, generated code and templates."""
    found = subprocess.run(
        ["git", "ls-files", "*.py", "*.c", "*.h"], cwd=_TREE, check=True, capture_output=True, text=True
    )
    roots = ("repoagent", "server_stub", "llm", "agents", "capi", "deploy", "contrib")
    files = [Path(name) for name in found.stdout.split() if name.split("/")[0] in roots]
    return [file for file in files if not {"tests", "templates"} & {*file.parts} and "_pb2" not in file.name]


def test_each_row_of_a_folder_names_files_that_are_there(page: str) -> None:
    rows = list(_rows(page))
    assert len(rows) > 80
    assert [str(folder) for folder, names in rows if not names] == []
    assert [str(folder / name) for folder, names in rows for name in names if not (folder / name).is_file()] == []


def test_each_file_is_named_in_the_row_of_its_folder(page: str) -> None:
    named = {(folder / name).resolve() for folder, names in _rows(page) for name in names}
    product = [file for file in _product() if file.suffix != ".h"]
    assert len(product) > 700
    assert [str(file) for file in product if (_TREE / file).resolve() not in named and not _evident(file)] == []


def _evident(file: Path) -> bool:
    """Whether its folder is what names it, or a sentence for all agents."""
    evident = {"agent.py", "cli.py", "plugin.py"}
    of_agent = "agents" in file.parts and (file.name in evident or file.name.endswith("_options.py"))
    return of_agent or file.name in ("__init__.py", "__main__.py")


def test_it_has_a_row_for_every_folder(page: str) -> None:
    rows = {folder.resolve() for folder, _ in _rows(page)}
    folders = {
        file.parent for root in _PACKAGES.values() for file in root.rglob("*.py") if "templates" not in file.parts
    }
    small = {folder for folder in folders if folder.name == "__pycache__" or not _has_files(folder)}
    assert [str(folder) for folder in sorted(folders - small) if folder not in rows] == []


def _has_files(folder: Path) -> bool:
    return any(file.name != "__init__.py" for file in folder.glob("*.py"))


def test_every_file_that_the_pages_name_is_there(page: str, internals: str) -> None:
    changes = page.split("## Changes that touch")[1]
    named = set(re.findall(r"`([\w/.]+\.(?:py|proto|svg))`", changes + internals))
    assert len(named) > 80
    assert [name for name in sorted(named) if not any((root / name).is_file() for root in _ROOTS)] == []


@pytest.mark.slow
def test_every_class_whose_lock_is_named_is_there(internals: str) -> None:
    table = internals.split("## Locks")[1].split("\n## ")[0]
    named = set(re.findall(r"`([A-Z]\w+)(?:\._\w+)?`", table))
    code = "\n".join(file.read_text() for root in _PACKAGES.values() for file in sorted(root.rglob("*.py")))
    assert len(named) > 15
    assert [name for name in sorted(named) if not re.search(rf"^class {name}\b", code, re.MULTILINE)] == []


def test_what_a_row_of_changes_quotes_stands_in_a_file_that_it_leads_to(page: str) -> None:
    """``circular dependency``: who follows the row finds the word there."""
    wrong, quoted = [], 0
    for row in page.split("## Changes that touch")[1].split("\n## ")[0].splitlines():
        wanted, _, places = row.strip("| ").partition(" | ")
        names = re.findall(r"`([\w/.]+\.(?:py|proto|h))`", places)
        found = [root / name for name in names for root in _ROOTS if (root / name).is_file()]
        words = re.findall(r"`([^`]+)`", wanted) if found else []
        quoted += len(words)
        wrong += [(word, names) for word in words if not any(word in file.read_text() for file in found)]
    assert quoted > 2
    assert wrong == []


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
