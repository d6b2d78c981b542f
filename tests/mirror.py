"""Prints the tests that mirror files or folders of the product, for ``make quick``.

    python tests/mirror.py repoagent/loader/chain.py

Of a file: the test file of its name, and the test files that import it; without any, those of its folder. Of a folder:
the folder that mirrors it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def mirror(path: Path) -> Path:
    """Where the tests of ``path`` lie, both relative to the root: ``tests/loader`` of ``repoagent/loader``.

    Raises:
        ValueError: it is not a path of the product.
    """
    for index, part in enumerate(path.parts):
        if part.startswith("repoagent"):
            inner = path.parts[index + 1 :]
            folder = Path(*path.parts[:index], "tests", *inner)
            return folder.with_name(f"test_{folder.name}") if path.suffix == ".py" else folder
    raise ValueError(f"{path} is not a file or folder of the product: name one below a folder repoagent...")


def covering(path: Path) -> list[Path]:
    """The test files and folders to run after a change of ``path``.

    Raises:
        ValueError: it is not a path of the product, or nothing tests it.
    """
    place = mirror(path)
    if path.suffix != ".py":
        found = [place] if (ROOT / place).is_dir() else []
    else:
        parts = path.with_suffix("").parts
        package = next(index for index, part in enumerate(parts) if part.startswith("repoagent"))
        found = sorted({*_existing(place), *_importers(parts[package:])}) or _beside(path, place)
    if not found:
        raise ValueError(f"nothing mirrors {path}: {place} does not exist, and no test imports it")
    return found


def _existing(place: Path) -> list[Path]:
    return [one.relative_to(ROOT) for one in (ROOT / place.parent).glob(f"{place.stem}*.py")]


def _beside(path: Path, place: Path) -> list[Path]:
    """The test files in the nearest folder that would hold those of a file without any of its own."""
    if not (ROOT / path).is_file():
        return []
    folders = (sorted((ROOT / folder).glob("test_*.py")) for folder in place.parents)
    return [one.relative_to(ROOT) for one in next(filter(None, folders), [])]


def _importers(parts: tuple[str, ...]) -> list[Path]:
    """The test files that import the module, in either form of the statement."""
    name, package, leaf = ".".join(parts), ".".join(parts[:-1]), parts[-1]
    pattern = rf"(from|import) {name}\b|from {package} import .*\b{leaf}\b"
    listed = subprocess.run(
        ["git", "grep", "-lE", pattern, "--", "*test_*.py"], cwd=ROOT, capture_output=True, text=True
    )
    return [Path(line) for line in listed.stdout.splitlines()]


def main(names: list[str]) -> int:
    """Print the tests of the paths ``names``; without any, or for one that nothing tests, what is wrong."""
    if not names:
        print("name what was changed: make quick repoagent/loader/chain.py", file=sys.stderr)
        return 2
    try:
        found = {test for name in names for test in covering((ROOT / name).resolve().relative_to(ROOT))}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*sorted(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
