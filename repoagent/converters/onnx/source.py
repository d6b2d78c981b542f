"""The files of an ONNX model: the model itself, and those that it names for its weights."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api.converters import ConversionSource
from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.onnx_files.external_files import external_files

__all__ = ["OnnxModel"]

NESTED_NAME: Final = "model.onnx"
"""The model file where the configured name is a directory, as Triton allows for models with external data."""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """The model of one version. Paths are relative to the version's directory.

    ``place`` is what the server opens: ``path`` itself, or the directory it lies in. ``external`` are the data files
    that it needs.
    """

    directory: Path
    path: str
    place: str
    external: tuple[str, ...]

    @classmethod
    def find(cls, source: ConversionSource) -> "OnnxModel":
        """The model that ``source`` names.

        Raises:
            InvalidArgumentError: there is none, it is not ONNX, or its data is missing.
            UnsafePathError: external data outside of the model file's directory, or a link.
        """
        directory, place = source.directory, source.name
        path = f"{place}/{NESTED_NAME}" if (directory / place).is_dir() else place
        shown = f"{directory.name}/{path}"
        if not (directory / path).is_file():
            raise InvalidArgumentError(f"{shown}: no such file; the parameter 'input' names the model file")
        _refuse_link(directory, path)
        locations = sorted(external_files(directory / path, shown))
        parent = path.rpartition("/")[0]
        external = tuple(_data_file(directory, parent, location, shown) for location in locations)
        return cls(directory, path, place, external)

    @property
    def parts(self) -> tuple[str, ...]:
        """The model file and all that it needs."""
        return (self.path, *self.external)

    @property
    def model_bytes(self) -> int:
        """The size of the model file alone."""
        return (self.directory / self.path).stat().st_size

    @property
    def replaced(self) -> tuple[str, ...]:
        """What is of no use once this model file is replaced. Data may be shared with other models beside it."""
        if self.place != self.path:
            return (self.place,)
        beside = [path for path in self.directory.glob("*.onnx") if path != self.directory / self.path]
        return (self.path,) if beside else self.parts


def _data_file(directory: Path, parent: str, location: str, model: str) -> str:
    # An absolute location, and one that leaves the directory, are seen once the path is made plain.
    inside = directory / parent
    path = os.path.normpath(f"{inside}/{location}")
    if location.startswith("/") or not path.startswith(f"{inside}{os.sep}"):
        raise UnsafePathError(f"{model} refers to data outside of its directory: {location!r}")
    relative = os.path.relpath(path, directory)
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"{model} refers to {directory.name}/{relative}, which is not there")
    _refuse_link(directory, relative)
    return relative


def _refuse_link(directory: Path, path: str) -> None:
    if directory.is_symlink():
        raise UnsafePathError(f"{directory.name} is a symbolic link, which is not followed")
    while path:
        if (directory / path).is_symlink():
            raise UnsafePathError(f"{directory.name}/{path} is a symbolic link, which is not followed")
        path = path.rpartition("/")[0]
