"""Importing a ``model.py`` so that models whose files have the same names do not meet."""

import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.model.context import ModelContext, entered
from repoagent.serving.backends.python.model.errors import let_interrupt_pass
from repoagent.serving.backends.python.model.fault_text import fault_text
from repoagent.serving.backends.python.model.own_modules import OwnModules
from repoagent.serving.backends.python.model.utils import UTILS_NAME, bound_utils

__all__ = ["ImportedModel", "import_model"]

_PREFIX: Final = "_repoagent_python_model_"
_numbers: Final = itertools.count(1)
# sys.path and sys.modules belong to the process: two models must not be imported at once.
_importing: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """The class ``TritonPythonModel`` of one run of a file, and the modules that came with it."""

    model_class: Any
    modules: OwnModules

    def close(self) -> None:
        """Forget the modules; what still refers to them keeps them alive."""
        self.modules.close()


def import_model(path: Path, context: ModelContext, *, alone: bool = False) -> ImportedModel:
    """Run the file at ``path`` as code of the model of ``context``.

    Files beside it, and in the directory above, can be imported, as under Triton, and each model gets modules of its
    own even where names are equal. Called again for the same path, the file is run again. ``alone``: this process has
    no other model and nothing else to do, so that its path and its modules can be the model's.

    Raises:
        InternalError: the file cannot be run, or has no class ``TritonPythonModel``.
    """
    utils = bound_utils(context)
    directories = [path.parent, path.parent.parent]
    modules = OwnModules(f"{_PREFIX}{next(_numbers)}", directories, {UTILS_NAME: utils}, names=not alone)
    try:
        with _importing, entered(context):
            if alone:
                _settle_in(directories, utils)
                return _execute(path, modules)
            with _surroundings(directories):
                return _execute(path, modules)
    except BaseException as error:
        modules.close()
        if isinstance(error, RepoAgentError):
            raise
        let_interrupt_pass(error)
        raise InternalError(fault_text(error, context)) from error


def _execute(path: Path, modules: OwnModules) -> ImportedModel:
    model_class = getattr(modules.run(path), "TritonPythonModel", None)
    if not isinstance(model_class, type):
        raise InternalError(f"{path.name} must define a class TritonPythonModel")
    return ImportedModel(model_class, modules)


def _settle_in(directories: Sequence[Path], utils: ModuleType) -> None:
    """Let all code of this process find what the model has, for good, also by ``importlib`` or ``pickle``."""
    sys.dont_write_bytecode = True
    sys.modules[UTILS_NAME] = utils
    sys.path += [place for place in map(str, directories) if place not in sys.path]


@contextmanager
def _surroundings(directories: Sequence[Path]) -> Iterator[None]:
    """The same for as long as a file is run; afterwards forget what was found in the directories."""
    before = set(sys.modules)
    write_bytecode = sys.dont_write_bytecode
    # A byte-code file would change the repository, and the next poll would take that for a new model.
    sys.dont_write_bytecode = True
    # For code that is no one's own: which model it works for is known when it is called.
    sys.modules[UTILS_NAME] = _ambient_utils
    places = [str(directory) for directory in directories]
    sys.path += places
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)
            sys.path_importer_cache.pop(place, None)
        sys.dont_write_bytecode = write_bytecode
        for name in set(sys.modules) - before:
            _forget_if_from(directories, name)


def _forget_if_from(directories: Sequence[Path], name: str) -> None:
    file = getattr(sys.modules[name], "__file__", None)
    own = name.startswith(_PREFIX)
    if not own and file and any(Path(file).is_relative_to(directory) for directory in directories):
        del sys.modules[name]


_ambient_utils: Final = bound_utils(None)
