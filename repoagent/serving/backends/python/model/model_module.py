"""Importing a ``model.py`` so that models whose files have the same names do not meet."""

import builtins
import itertools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.model.context import ModelContext, entered, fault_text, let_interrupt_pass
from repoagent.serving.backends.python.model.utils import UTILS_NAME, bound_utils


class OwnModules:
    """The modules of one run of a model's code, in ``package``: what ``directories`` hold, and ``given`` ones.

    With ``names`` the model's code finds them by their names alone; else only as its own package's, by relative
    imports.
    """

    def __init__(
        self, package: str, directories: Sequence[Path], given: Mapping[str, ModuleType], *, names: bool
    ) -> None:
        self._package = package
        self._places = [str(directory) for directory in directories]
        self._given = given
        self._own: dict[str, bool] = {}
        self._builtins: Final = vars(builtins) | ({"__import__": self._import} if names else {})
        module = ModuleType(package)
        module.__path__ = self._places
        sys.modules[package] = module
        _FINDER.add(package, self)
        for place in self._places:  # Files may have changed within one tick of its clock.
            sys.path_importer_cache.pop(place, None)

    def run(self, path: Path) -> ModuleType:
        """Run the file at ``path`` and return what it has become. Raises whatever the code does."""
        name = f"{self._package}.{path.stem.replace('.', '_')}"
        spec = spec_from_file_location(name, path, loader=self.loader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def loader(self, name: str, path: str) -> SourceFileLoader:
        """What makes a module of the file at ``path``."""
        return _Loader(name, path, self._builtins)

    def close(self) -> None:
        """Forget the modules; what still refers to one keeps it alive."""
        _FINDER.remove(self._package)
        # Of a copy: other threads import meanwhile.
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == self._package]:
            del sys.modules[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the names are those of the function it stands for
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What the model's code has as ``__import__``."""
        if not level and name in self._given:
            return self._given[name]
        root = name.partition(".")[0]
        if level or not self._is_own(root):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{self._package}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[f"{self._package}.{root}"]

    def _is_own(self, root: str) -> bool:
        own = self._own.get(root)
        if own is None:
            own = self._own[root] = PathFinder.find_spec(root, self._places) is not None and not self._installed(root)
        return own

    def _installed(self, root: str) -> bool:
        """Whether ``root`` is found outside, as by an interpreter whose path ends with the model's directories: there a
        directory that is no package, such as one of the server's working directory, comes after any file."""
        elsewhere = [place for place in sys.path if place not in self._places]
        for finder in sys.meta_path:
            spec = finder.find_spec(root, [*elsewhere, *self._places] if finder is PathFinder else None)
            if spec is not None:
                found = spec.submodule_search_locations or [spec.origin or ""]
                return not any(Path(place).parent == Path(own) for place in found for own in self._places)
        return False


class _Finder:
    """Finds the modules of all private packages, for the import system."""

    def __init__(self) -> None:
        self._packages: dict[str, OwnModules] = {}

    def add(self, package: str, modules: OwnModules) -> None:
        self._packages[package] = modules
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self, package: str) -> None:
        self._packages.pop(package, None)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        modules = self._packages.get(name.partition(".")[0])
        spec = PathFinder.find_spec(name, path) if modules is not None else None
        if modules is not None and spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = modules.loader(name, spec.loader.path)
        return spec


_FINDER: Final = _Finder()


class _Loader(SourceFileLoader):
    """Runs a file with ``builtins`` of its own, and leaves nothing beside it."""

    def __init__(self, name: str, path: str, own_builtins: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._builtins = own_builtins

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no byte-code file: the next poll of the repository would take that for a new model."""


_PREFIX: Final = "_repoagent_python_model_"
_numbers: Final = itertools.count(1)
# sys.path and sys.modules belong to the process: two models must not be imported at once.
_importing: Final = threading.Lock()


def import_model(path: Path, context: ModelContext, *, alone: bool = False) -> tuple[Any, OwnModules]:
    """Run the file at ``path`` as code of the model of ``context``: its class ``TritonPythonModel``, and the modules
    that came with it.

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
                return _model_class(modules.run(path), path), modules
            with _surroundings(directories):
                return _model_class(modules.run(path), path), modules
    except BaseException as error:
        modules.close()
        if isinstance(error, RepoAgentError):
            raise
        let_interrupt_pass(error)
        raise InternalError(fault_text(error, context)) from error


def _model_class(module: ModuleType, path: Path) -> Any:
    found = getattr(module, "TritonPythonModel", None)
    if not isinstance(found, type):
        raise InternalError(f"{path.name} must define a class TritonPythonModel")
    return found


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
