"""Prints, for each package of this tree, its folders, the cycles between them, and the imports that go upwards.

    python tests/folders.py

A folder is its files together; its sub-folders are folders of their own, and what they import of each other is counted
at every level. An ``__init__`` and a ``__main__`` are doors: they import what lies behind them, and nothing behind
them may import the door. Imports for the type checker only count like any other. Exits with 1 unless all counts are 0.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TREE: Final = Path(__file__).parents[1]
_DOORS: Final = ("__init__", "__main__")


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a module in another, both by their dotted names."""

    source: str
    target: str


@dataclass(frozen=True)
class Level:
    """What the folders directly in one package import of each other."""

    package: str
    arrows: dict[tuple[str, str], list[Import]] = field(default_factory=dict)

    def cycles(self) -> list[list[str]]:
        """The sets of folders of which each is reached from every other."""
        below = {name: self._reached(name) for pair in self.arrows for name in pair}
        knots = {frozenset(other for other in below if other in below[name] and name in below[other]) for name in below}
        return sorted(sorted(knot) for knot in knots if len(knot) > 1)

    def _reached(self, start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            for source, target in self.arrows:
                if source == name and target not in found:
                    found.add(target)
                    waiting.append(target)
        return found

    def upward(self) -> list[Import]:
        """The imports that would have to go: in each cycle, those against the direction that most imports have."""
        return [each for cycle in self.cycles() for each in self._against(cycle)]

    def _against(self, cycle: list[str]) -> Iterator[Import]:
        inner = {pair: found for pair, found in self.arrows.items() if pair[0] in cycle and pair[1] in cycle}

        def height(name: str) -> int:
            return sum(len(found) * ((pair[0] == name) - (pair[1] == name)) for pair, found in inner.items())

        order = sorted(cycle, key=height, reverse=True)
        for (source, target), found in inner.items():
            if order.index(source) > order.index(target):
                yield from found


def modules_of(package: Path) -> dict[str, Path]:
    """The files of a package by dotted names; an ``__init__`` has its package's."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports_of(package: Path) -> Iterator[Import]:
    """Every import of one module of a package by another."""
    modules = modules_of(package)
    for name, path in modules.items():
        for target in _targets(ast.parse(path.read_text(encoding="utf-8")), modules):
            if target != name:
                yield Import(name, target)


def _targets(tree: ast.AST, modules: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from dict.fromkeys(
                name if name in modules else node.module for name in named if name in modules or node.module in modules
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def levels_of(package: Path) -> list[Level]:
    """A level for the package and for each package in it that has folders."""
    modules = modules_of(package)
    packages = {name for name, path in modules.items() if path.stem == "__init__"}
    levels = {name: Level(name) for name in sorted(packages)}
    for each in imports_of(package):
        for name in _above(each, packages):
            pair = (_folder(each.source, name, packages), _folder(each.target, name, packages))
            if pair[0] != pair[1]:
                levels[name].arrows.setdefault(pair, []).append(each)
    return list(levels.values())


def _above(each: Import, packages: set[str]) -> list[str]:
    return [
        name
        for name in packages
        if f"{each.source}.".startswith(f"{name}.") and f"{each.target}.".startswith(f"{name}.")
    ]


def _folder(module: str, package: str, packages: set[str]) -> str:
    """Where, directly in ``package``, a module lies: a sub-folder, a door, or ``.`` for any other file."""
    first, _, rest = module.removeprefix(package).removeprefix(".").partition(".")
    if not first or first in _DOORS:
        return first or "__init__"
    return first if rest or f"{package}.{first}" in packages else "."


def packages() -> list[Path]:
    """The packages of this tree, each the root of a distribution."""
    roots = [
        _TREE,
        *sorted(_TREE.glob("agents/*")),
        _TREE / "llm",
        _TREE / "server_stub",
        _TREE / "capi",
        _TREE / "deploy" / "ray",
        _TREE / "contrib" / "vllm",
    ]
    return [path.parent for root in roots for path in sorted(root.glob("repoagent*/__init__.py"))]


def main() -> int:
    """Print the table, and every import that goes upwards."""
    bad = 0
    print(f"{'package':48} {'folders':>7} {'cycles':>7} {'imports upwards':>16}")
    for level in (level for package in packages() for level in levels_of(package)):
        folders = {name for pair in level.arrows for name in pair} - {*_DOORS, "."}
        upward = level.upward()
        if folders or upward:
            bad += len(upward)
            print(f"{level.package:48} {len(folders):7} {len(level.cycles()):7} {len(upward):16}")
            for each in upward:
                print(f"    {each.source} imports {each.target}")
    print(f"{bad} imports go upwards")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
