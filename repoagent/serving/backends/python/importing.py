"""Importing a ``model.py`` so that models whose files have the same names do not meet."""

import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.context import ModelContext, entered
from repoagent.serving.backends.python.errors import let_interrupt_pass
from repoagent.serving.backends.python.utils import UTILS_NAME, bound_utils

__all__ = ["ImportedModel", "import_model"]

_PREFIX: Final = "_repoagent_python_model_"
_numbers: Final = itertools.count(1)
# sys.path and sys.modules belong to the process: two models must not be imported at once.
_importing: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """The class ``TritonPythonModel`` of one run of a file, and the name that the run has among the modules."""

    model_class: Any
    module_name: str

    def close(self) -> None:
        """Forget the module; what still refers to it keeps it alive."""
        sys.modules.pop(self.module_name, None)


def import_model(path: Path, context: ModelContext) -> ImportedModel:
    """Run the file at ``path`` as code of the model of ``context``.

    Files beside it can be imported at module level, as under Triton, and each model gets modules of its own even where
    names are equal. Called again for the same path, the file is run again.

    Raises:
        InternalError: the file cannot be run, or has no class ``TritonPythonModel``.
    """
    with _importing, _surroundings(path.parent, bound_utils(context)), entered(context):
        return _execute(path)


def _execute(path: Path) -> ImportedModel:
    name = f"{_PREFIX}{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return ImportedModel(_model_class(module, path), name)
    except RepoAgentError:
        del sys.modules[name]
        raise
    except BaseException as error:
        del sys.modules[name]
        let_interrupt_pass(error)
        raise InternalError(f"{type(error).__name__}: {error}") from error


def _model_class(module: ModuleType, path: Path) -> type:
    model_class = getattr(module, "TritonPythonModel", None)
    if not isinstance(model_class, type):
        raise InternalError(f"{path.name} must define a class TritonPythonModel")
    return model_class


@contextmanager
def _surroundings(directory: Path, utils: ModuleType) -> Iterator[None]:
    """Let imports find ``directory`` and the utilities first; afterwards forget what was found in the directory."""
    before = set(sys.modules)
    write_bytecode = sys.dont_write_bytecode
    # A byte-code file would change the repository, and the next poll would take that for a new model.
    sys.dont_write_bytecode = True
    sys.modules[UTILS_NAME] = utils
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.dont_write_bytecode = write_bytecode
        sys.path_importer_cache.pop(str(directory), None)
        for name in set(sys.modules) - before:
            _forget_if_from(directory, name)


def _forget_if_from(directory: Path, name: str) -> None:
    file = getattr(sys.modules[name], "__file__", None)
    if not name.startswith(_PREFIX) and file and Path(file).is_relative_to(directory):
        del sys.modules[name]
