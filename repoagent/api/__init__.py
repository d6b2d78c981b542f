"""Everything that the author of an agent imports. The import loads nothing heavy.

``ModelConfig``, ``WebClient`` and ``WebAnswer`` are loaded on first use: they need protobuf, and ssl.
"""

from typing import TYPE_CHECKING, Any

from repoagent.api.actions import Action, ArtifactType
from repoagent.api.agent import Agent
from repoagent.api.converters import (
    Conversion,
    ConversionJob,
    ConversionPlan,
    ConversionSource,
    Converted,
    Converter,
    ConverterOption,
    Product,
    Progressing,
)
from repoagent.api.downloads import RemoteFile
from repoagent.api.model import AgentModel, Cache, Parameters, read_key, read_token
from repoagent.api.opened_files import OpenedFiles, opened_files
from repoagent.api.report import ActionReport, EntryReport, LoadReport
from repoagent.atomic_file import replace_file
from repoagent.beneath import (
    held_beneath,
    list_beneath,
    open_beneath,
    read_beneath,
    read_small_file,
    status_beneath,
    unchanged,
    walk_beneath,
)
from repoagent.errors import (
    AlreadyExistsError,
    CancelledError,
    ConfigError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
    UnknownError,
    UnsafePathError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.web import WebAnswer, WebClient

from repoagent.installing import install_hint
from repoagent.nested_text import read_json

__all__ = [
    "Action",
    "ActionReport",
    "Agent",
    "AgentModel",
    "AlreadyExistsError",
    "ArtifactType",
    "Cache",
    "CancelledError",
    "ConfigError",
    "Conversion",
    "ConversionJob",
    "ConversionPlan",
    "ConversionSource",
    "Converted",
    "Converter",
    "ConverterOption",
    "EntryReport",
    "InternalError",
    "InvalidArgumentError",
    "LoadReport",
    "ModelConfig",
    "NotFoundError",
    "OpenedFiles",
    "Parameters",
    "Product",
    "Progressing",
    "RemoteFile",
    "RepoAgentError",
    "UnavailableError",
    "UnknownError",
    "UnsafePathError",
    "UnsupportedError",
    "WebAnswer",
    "WebClient",
    "held_beneath",
    "install_hint",
    "list_beneath",
    "open_beneath",
    "opened_files",
    "read_beneath",
    "read_json",
    "read_key",
    "read_small_file",
    "read_token",
    "replace_file",
    "status_beneath",
    "unchanged",
    "walk_beneath",
]


def __getattr__(name: str) -> Any:
    if name == "ModelConfig":
        from repoagent.config import ModelConfig

        return ModelConfig
    if name in ("WebAnswer", "WebClient"):
        import repoagent.web

        return getattr(repoagent.web, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
