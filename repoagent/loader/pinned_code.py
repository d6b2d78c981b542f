"""Importing pinned code: what runs is what has the digest, whatever else lies beside it.

Python prefers a compiled file in ``__pycache__`` to the source that was verified, and imports files that no list has.
Modules of pinned packages are therefore compiled from their source, which is read once and compared with its digest.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """The code of one agent: its ``digest`` as a policy gives it, and what may be imported of it.

    ``files`` are real paths with their SHA-256 (hex). ``packages`` are the top-level modules that are wholly in
    ``files``; ``shared`` those that other distributions have a part in.
    """

    digest: str
    files: Mapping[str, str]
    packages: frozenset[str]
    shared: frozenset[str] = frozenset()


class PinnedCode(MetaPathFinder):
    """Finds modules of pinned packages before Python's own finders do. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, str] = {}
        self._packages: set[str] = set()
        self._shared: set[str] = set()

    def add(self, code: Code) -> None:
        """From now on import nothing of the packages of ``code`` but its files, unchanged.

        Modules that were imported before (by a plug-in of the same distribution) are imported again when they are
        needed next.
        """
        with self._lock:
            self._files.update(code.files)
            new = code.packages - self._packages
            self._packages |= code.packages
            self._shared |= code.shared
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
        for name in [name for name in sys.modules if _top(name) in new]:
            del sys.modules[name]

    def clear(self) -> None:
        """Pin nothing any more; what was imported stays."""
        with self._lock:
            self._files.clear()
            self._packages.clear()
            self._shared.clear()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

    def digest_of(self, file: Path) -> str | None:
        """The SHA-256 (hex) that ``file`` must have; None if it is not part of pinned code."""
        return self._files.get(os.path.realpath(file))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec that imports verified source, or None for a module that is not pinned."""
        if _top(fullname) not in self._packages | self._shared:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        return None if spec is None else self.secure(spec)

    def secure(self, spec: ModuleSpec) -> ModuleSpec:
        """``spec`` so that it imports verified source, if its package is pinned.

        Raises:
            ImportError: the package is pinned, and the file is not part of it.
        """
        top = _top(spec.name)
        if top not in self._packages | self._shared or not spec.has_location or spec.origin is None:
            return spec
        digest = self._files.get(os.path.realpath(spec.origin))
        if digest is None and top in self._packages:
            raise ImportError(f"{spec.origin} is not part of the pinned code of '{top}'", name=spec.name)
        if digest is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _VerifiedLoader(spec.name, spec.origin, digest)
            spec.cached = None
        return spec


class _VerifiedLoader(SourceFileLoader):
    """Compiles the source that it verified; neither reads nor writes ``__pycache__``."""

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self._digest = digest

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if hashlib.sha256(source).hexdigest() != self._digest:
            raise ImportError(f"{self.path} was changed after it was verified", name=fullname)
        code: CodeType = self.source_to_code(source, self.path)
        return code


def _top(module_name: str) -> str:
    return module_name.partition(".")[0]


PINNED_CODE: Final = PinnedCode()
"""The one of this process, as there is one ``sys.meta_path``."""
