"""The counter of cycles between folders finds them, so that its zeroes say something."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.folders import Level, levels_of, packages

pytestmark = pytest.mark.slow


def _package(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "shop"


def _level(root: Path, files: Mapping[str, str]) -> Level:
    return levels_of(_package(root, files))[0]


@pytest.mark.parametrize("package", packages(), ids=lambda path: path.name)
def test_no_folder_of_this_tree_imports_upwards(package: Path) -> None:
    assert [each for level in levels_of(package) for each in level.upward()] == []


def test_two_folders_that_import_each_other_are_a_cycle(tmp_path: Path) -> None:
    files = {
        "till/__init__.py": "",
        "till/a.py": "from shop.stock.c import d\nfrom shop.stock import c\nimport shop.stock.e",
        "stock/__init__.py": "",
        "stock/c.py": "def f():\n    from shop.till import a",
        "stock/e.py": "",
    }
    level = _level(tmp_path, files)
    assert level.cycles() == [["stock", "till"]]
    assert [(each.source, each.target) for each in level.upward()] == [("shop.stock.c", "shop.till.a")]


def test_a_cycle_of_three_is_found_through_the_type_checkers_imports(tmp_path: Path) -> None:
    files = {f"{name}/__init__.py": "" for name in ("a", "b", "c")}
    for name, target in (("a", "b"), ("b", "c"), ("c", "a")):
        files[f"{name}/x.py"] = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.{target} import x"
    assert _level(tmp_path, files).cycles() == [["a", "b", "c"]]


def test_the_files_of_a_package_are_one_folder(tmp_path: Path) -> None:
    """One file on top and one beneath, in one drawer, with a folder between them."""
    files = {
        "core.py": "from shop.till import a",
        "errors.py": "",
        "till/__init__.py": "",
        "till/a.py": "from shop.errors import E",
    }
    assert _level(tmp_path, files).cycles() == [[".", "till"]]


def test_a_door_may_import_what_lies_behind_it_but_not_the_other_way_round(tmp_path: Path) -> None:
    files = {"till/__init__.py": "", "till/a.py": "", "__main__.py": "from shop.till import a"}
    assert _level(tmp_path, files).cycles() == []
    files |= {"__init__.py": "from shop.till import a", "till/a.py": "from shop import name"}
    assert _level(tmp_path, files).cycles() == [["__init__", "till"]]
