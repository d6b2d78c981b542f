"""Which files of a model its backend opens, and which program it would start."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.beneath.opening import list_beneath, read_beneath

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_CONFIG: Final = "config.pbtxt"
_LARGEST_CONFIG: Final = 16 << 20
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """What a configuration makes of the files of a model. Paths are relative to the model, with ``/``."""

    backends: Mapping[str, str] = field(default_factory=dict)
    """The file, or the directory, that is opened in each version directory, and the backend that opens it. It need
    not exist."""
    environment: str = ""
    """The interpreter in the model that runs a Python model, or the directory that it lies in; empty if there is none
    in the model."""


def opened_files(root: Path, config: "ModelConfig | None" = None, *, name: str = "") -> OpenedFiles:
    """What the backend of the model at ``root`` opens, as a server would find out.

    Args:
        root: The directory of the model.
        config: Its configuration; without one, ``config.pbtxt`` is read, if there is one.
        name: The name of the model, which may name a backend (``NAME.BACKEND``).

    Raises:
        ConfigError: ``config.pbtxt`` cannot be parsed.
        OSError: a directory cannot be read.
    """
    from repoagent.config import default_config, executed_by, normalize, read_text

    names = list_beneath(root)
    if config is None and _CONFIG in names:
        config = read_text(read_beneath(root, _CONFIG, limit=_LARGEST_CONFIG).decode(errors="replace"))
    config = config or default_config(name)
    backends: dict[str, str] = {}
    for version in filter(str.isdecimal, names):
        complete = normalize(config, model_name=name, files=_files(root, version), gpus=None)
        backend = executed_by(complete)
        for path in (complete.default_model_filename, *complete.cc_model_filenames.values()):
            if backend and path:
                backends[posixpath.normpath(f"{version}/{path}")] = backend
    return OpenedFiles(backends, next(_environment(config, root), ""))


def _files(root: Path, version: str) -> list[str]:
    try:
        return list_beneath(root, version)
    except NotADirectoryError:
        return []


def _environment(config: "ModelConfig", root: Path) -> Iterator[str]:
    if _ENVIRONMENT not in config.parameters:
        return
    named = config.parameters[_ENVIRONMENT].string_value.replace(_MODEL_DIRECTORY, str(root))
    path = posixpath.normpath(named)
    if named and Path(path).is_relative_to(root):
        yield posixpath.relpath(path, root)
