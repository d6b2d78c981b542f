"""A model's directory: its versions, the files of one version that belong to the model file, and making a new one."""

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, UnsafePathError
from repoagent_convert.onnx_file import external_files

__all__ = ["ModelFile", "copy_others", "find_model_files", "link_or_copy"]

NESTED_NAME: Final = "model.onnx"
"""The model file where the configured name is a directory, as Triton allows for models with external data."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The model of one version. Paths are relative to the model's directory.

    ``place`` is what the server opens: ``path`` itself, or the directory it lies in. ``external`` are the data files
    that it needs.
    """

    version: str
    path: str
    place: str
    external: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The model file and all that it needs."""
        return (self.path, *self.external)

    def replaced(self, root: Path) -> tuple[str, ...]:
        """What nobody needs once this model file is replaced. Data may be shared with other models beside it."""
        if self.place != self.path:
            return (self.place,)
        beside = [path for path in (root / self.version).glob("*.onnx") if path != root / self.path]
        return (self.path,) if beside else self.parts


def find_model_files(root: Path, name: str) -> list[ModelFile]:
    """The model file called ``name`` in every version directory of ``root``, by version.

    Raises:
        InvalidArgumentError: no version at all, or one without this file, or the file is not ONNX or lacks its data.
        UnsafePathError: external data outside of the model file's directory, or a link.
    """
    versions = sorted((path.name for path in root.iterdir() if path.is_dir() and _is_version(path.name)), key=int)
    if not versions:
        raise InvalidArgumentError("the model has no version directory (1, 2, ...), so there is nothing to convert")
    return [_model_file(root, version, name) for version in versions]


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")


def _model_file(root: Path, version: str, name: str) -> ModelFile:
    place = f"{version}/{name}"
    path = f"{place}/{NESTED_NAME}" if (root / place).is_dir() else place
    if not (root / path).is_file():
        raise InvalidArgumentError(f"{path}: no such file; the parameter 'input' names the model file")
    _refuse_link(root, path)
    directory = path.rpartition("/")[0]
    external = sorted(external_files(root / path, path))
    return ModelFile(version, path, place, tuple(_data_file(root, directory, location, path) for location in external))


def _data_file(root: Path, directory: str, location: str, model: str) -> str:
    # An absolute location, and one that leaves the directory, are seen once the path is made plain.
    path = os.path.normpath(f"{root / directory}/{location}")
    if location.startswith("/") or not path.startswith(f"{root / directory}{os.sep}"):
        raise UnsafePathError(f"{model} refers to data outside of its directory: {location!r}")
    relative = os.path.relpath(path, root)
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"{model} refers to {relative}, which is not there")
    _refuse_link(root, relative)
    return relative


def _refuse_link(root: Path, path: str) -> None:
    while path:
        if (root / path).is_symlink():
            raise UnsafePathError(f"{path} is a symbolic link, which is not followed")
        path = path.rpartition("/")[0]


def copy_others(root: Path, target: Path, leave_out: Collection[str], directory: str = "") -> int:
    """Copy what is in ``directory`` of ``root`` to ``target``, but the files and directories ``leave_out``.

    Empty directories are kept: the one of a version may be all there is of it. Returns the number of bytes.

    Raises:
        UnsafePathError: there is a link, or something that is neither file nor directory.
    """
    copied = 0
    with os.scandir(root / directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        if path in leave_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            (target / path).mkdir()
            copied += copy_others(root, target, leave_out, path)
        elif entry.is_file(follow_symlinks=False):
            shutil.copyfile(entry.path, target / path)
            copied += entry.stat().st_size
        else:
            raise UnsafePathError(f"{path} is a link or a special file, which is not copied")
    return copied


def link_or_copy(source: Path, target: Path) -> int:
    """Make the files of ``source`` appear in ``target``; return the number of bytes that had to be written.

    A hard link keeps the bytes even when the cache lets them go, and costs nothing; across filesystems it is a copy.
    """
    written = 0
    for path in source.iterdir():
        try:
            (target / path.name).hardlink_to(path)
        except OSError:
            shutil.copyfile(path, target / path.name)
            written += path.stat().st_size
    return written
