"""Prints how large this tree is, in the numbers that a reader feels.

    python tests/measure.py            # what can be read off the files
    python tests/measure.py --run      # also what a request and a load cross, and how long the tests take to collect

The product is what is installed: Python files of every distribution but their tests, examples and generated messages.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_TREE: Final = Path(__file__).parents[1]
_PRODUCT: Final = ("repoagent", "llm", "server_stub", "agents", "capi", "deploy", "contrib")
_SMALL: Final = 40
_METHOD: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="also run a load and requests, and collect the tests")
    rows = [*static()]
    if parser.parse_args().run:
        rows += [*dynamic()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def static() -> Iterator[tuple[str, str]]:
    """What the files show."""
    product = {path: path.read_text() for path in files(_PRODUCT) if not _is_test(path)}
    own = {path: text for path, text in product.items() if path.is_relative_to(_TREE / "repoagent")}
    tests = [path for path in files((".",)) if _is_test(path)]
    used = importers(product)
    named = [path for path in product if path.name not in ("__init__.py", "__main__.py")]
    yield "product, lines in files", f"{lines(product.values()):,} in {len(product):,}"
    yield "repoagent/", f"{lines(own.values()):,} in {len(own):,}"
    small = sum(lines([product[path]]) < _SMALL for path in named)
    yield f"files under {_SMALL} lines, without __init__", f"{small}"
    yield "files with one importer", f"{sum(used[module(path)] == 1 for path in named)}"
    yield (
        "protocols without a second class that has their methods",
        f"{lonely_protocols(product.values())}",
    )
    benchmarks = [path.read_text() for path in files(("benchmarks",))]
    yield "benchmarks, lines in files", f"{lines(benchmarks):,} in {len(benchmarks)}"
    yield "tests, lines in files", f"{lines(path.read_text() for path in tests):,} in {len(tests):,}"


def files(places: Iterable[str]) -> list[Path]:
    """The Python files that git knows below ``places``, without generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *places], cwd=_TREE, capture_output=True, text=True, check=True
    )
    paths = (_TREE / name for name in listed.stdout.split("\0") if name.endswith(".py") and "_pb2" not in name)
    return [path for path in paths if path.is_file()]


def _is_test(path: Path) -> bool:
    parts = path.relative_to(_TREE).parts
    return "tests" in parts or path.name == "conftest.py"


def lines(texts: Iterable[str]) -> int:
    """How many lines they have together."""
    return sum(len(text.splitlines()) for text in texts)


def module(path: Path) -> str:
    """The dotted name that others import ``path`` by."""
    parts = list(path.relative_to(_TREE).with_suffix("").parts)
    start = next((index for index, part in enumerate(parts) if part.startswith("repoagent")), 0)
    return ".".join(parts[start:])


def importers(product: dict[Path, str]) -> Counter[str]:
    """How many files of ``product`` import each module, or something from it; names in entry points do not count."""
    known = {module(path) for path in product}
    found: Counter[str] = Counter()
    for path, text in product.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        found.update((targets & known) - {module(path)})
    return found


def lonely_protocols(texts: Iterable[str]) -> int:
    """Protocols whose methods fewer than two classes of the product have, as fields or from their bases, too."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    protocols: list[set[str]] = []
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            named = {ast.unparse(base).split("[")[0] for base in node.bases}
            if "Protocol" in named:
                protocols.append({child.name for child in node.body if isinstance(child, _METHOD)})
            else:
                own[node.name] = own.get(node.name, set()) | set(_members(node))
                bases[node.name] = bases.get(node.name, set()) | named
    classes = [_inherited(name, own, bases) for name in own]
    return sum(sum(methods <= members for members in classes) < 2 for methods in protocols if methods)


def _members(node: ast.ClassDef) -> Iterator[str]:
    """What instances have: methods, fields, and what methods assign to ``self``."""
    for child in node.body:
        if isinstance(child, _METHOD):
            yield child.name
    for inner in ast.walk(node):
        if isinstance(inner, ast.AnnAssign | ast.Assign):
            for target in inner.targets if isinstance(inner, ast.Assign) else [inner.target]:
                if isinstance(target, ast.Name | ast.Attribute):
                    yield target.id if isinstance(target, ast.Name) else target.attr


def _inherited(name: str, own: dict[str, set[str]], bases: dict[str, set[str]]) -> set[str]:
    found, waiting = set(own[name]), [*bases[name]]
    seen = {name}
    while waiting:
        base = waiting.pop().rpartition(".")[2]
        if base in own and base not in seen:
            seen.add(base)
            found |= own[base]
            waiting += bases[base]
    return found


_LOAD: Final = """
import json, sys
from pathlib import Path
files = set()
def look(frame, event, argument):
    files.add(frame.f_code.co_filename)
import threading
from repoagent.server import ModelControlMode, Server
with Server(model_repository="examples/digits/repository", model_control_mode=ModelControlMode.EXPLICIT) as server:
    getattr(threading, "setprofile_all_threads", threading.setprofile)(look)
    sys.setprofile(look)
    server.load("digits_secure")
    sys.setprofile(None)
print(json.dumps(sorted(name for name in files if Path(name).is_relative_to(Path.cwd()) and ".venv" not in name)))
"""


def dynamic() -> Iterator[tuple[str, str]]:
    """What running shows. Threads that live before the load count only from Python 3.12 on."""
    with tempfile.TemporaryDirectory() as scratch:
        identity = (_TREE / "examples/digits/identity.txt").read_text().split()[-1]
        environment = os.environ | {"DIGITS_IDENTITY": identity, "XDG_CACHE_HOME": scratch}
        run = [sys.executable, "-c", _LOAD]
        done = subprocess.run(run, cwd=_TREE, env=environment, capture_output=True, text=True, check=True)
    yield "load of digits_secure, files", f"{len(json.loads(done.stdout.splitlines()[-1]))}"
    budget = [sys.executable, "-m", "pytest", "-q", "-s", "server_stub/tests/test_request_budget.py", "-k", "calls"]
    printed = subprocess.run(budget, cwd=_TREE, capture_output=True, text=True, check=False).stdout
    for line in printed.splitlines():
        if "calls of a request" in line:
            name, _, value = line[line.index("calls") :].partition(": ")
            yield name, value
    begun = time.monotonic()
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only"]
    collected = subprocess.run(collect, cwd=_TREE, capture_output=True, text=True, check=False)
    last = [line for line in collected.stdout.splitlines() if line.strip()][-1:] or collected.stderr.splitlines()[-1:]
    status = f"FAILED with {collected.returncode}, " if collected.returncode else ""
    yield "collection of the tests", f"{time.monotonic() - begun:.0f} s, {status}{''.join(last)}"


if __name__ == "__main__":
    main()
