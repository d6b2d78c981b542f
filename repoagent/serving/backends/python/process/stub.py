"""The program that a child process runs: ``python -P stub.py WORK_FD SIDE_FD PROGRESS_FD PARENT_PID``, and its limits.

It is run by its path, so that it also starts in an interpreter that knows nothing of this package (which needs NumPy,
and nothing else): the package is loaded from where this file lies, and nothing beside it can be imported by accident.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[4]


def load_package() -> None:
    """Make this file's own package importable, whatever is installed."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE.name, PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_package()
    from repoagent.serving.backends.python.process.child import main

    sys.exit(main(*map(int, sys.argv[1:])))
