"""The files of an ONNX model: the model itself, and those that it names for its weights."""

import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.api.converters import ConversionSource
from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.onnx_files.external_files import external_files

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

BACKEND: Final = "onnxruntime"
PLATFORM: Final = "onnxruntime_onnx"
DEFAULT_FILE_NAME: Final = "model.onnx"
_EXTERNAL_ABOVE: Final = 1 << 30
"""Bytes of a model file above which its weights are written apart: it can grow, and 2 GiB are the end of the format."""


def refuse_other_backend(config: "ModelConfig | None") -> None:
    """Raise ``InvalidArgumentError`` where the configuration names another backend: the file is meant for that."""
    if config is None:
        return
    if config.backend not in ("", BACKEND) or config.platform not in ("", PLATFORM):
        other = config.backend or config.platform
        raise InvalidArgumentError(f"converts models of the backend '{BACKEND}', but the configuration has '{other}'")


def serve_with_onnx_runtime(config: "ModelConfig", output: str) -> None:
    """Name the backend and the file, where they are not what is taken anyway."""
    if output != (config.default_model_filename or DEFAULT_FILE_NAME):
        config.default_model_filename = output
    if not (config.backend or config.platform):
        config.backend = BACKEND


_CPU_INFO: Final = Path("/proc/cpuinfo")


def processor() -> str:
    """The same text on machines between which results may be exchanged."""
    digest = hashlib.sha256(" ".join(sorted(_features())).encode()).hexdigest()
    return f"{platform.machine()} with the features {digest[:16]}"


def has_vnni() -> bool:
    """Whether products of eight bits are added in 32: else pairs of them are added in 16, and may saturate."""
    return any("vnni" in feature for feature in _features())


def _features() -> set[str]:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


def runtime_version() -> str:
    """The version of the installed ONNX Runtime."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    import onnxruntime

    return str(onnxruntime.__version__)


def public_error(error: Exception, *directories: Path) -> str:
    """The text of ``error`` without the private directories that it may name."""
    text = " ".join(str(error).split())
    for directory in directories:
        text = text.replace(f"{directory}/", "")
    return text.removeprefix("[ONNXRuntimeError] : ")


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
    def writes_external(self) -> bool:
        """Whether a result has its weights in a file of their own: if the model had, or may grow beyond one file."""
        return bool(self.external) or (self.directory / self.path).stat().st_size > _EXTERNAL_ABOVE

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
