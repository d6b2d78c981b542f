"""Everything that the author of an agent imports. The import loads nothing heavy.

What needs protobuf, ssl, hashlib or zipfile is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    recognized,
)
from repoagent.api.downloads import RemoteFile
from repoagent.api.model import AgentModel, Cache, Parameters, read_key, read_token
from repoagent.api.opened_files import OpenedFiles, opened_files
from repoagent.api.report import Action, ActionReport, ArtifactType, EntryReport, LoadReport
from repoagent.atomic_file import replace_file
from repoagent.beneath.opening import (
    TreeEntry,
    held_beneath,
    list_beneath,
    open_beneath,
    read_beneath,
    read_small_file,
    status_beneath,
    walk_beneath,
)
from repoagent.beneath.unchanged import unchanged
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
from repoagent.installing import install_hint
from repoagent.nested_text import read_json, read_json_object

if TYPE_CHECKING:
    from repoagent.api.archives import Archive
    from repoagent.beneath.digests import FileRange, digest_files, digest_ranges, new_hasher, tree_digest
    from repoagent.config import ModelConfig
    from repoagent.web import WebAnswer, WebClient


__all__ = [
    "Action",
    "ActionReport",
    "Agent",
    "AgentModel",
    "AlreadyExistsError",
    "Archive",
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
    "FileRange",
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
    "TreeEntry",
    "UnavailableError",
    "UnknownError",
    "UnsafePathError",
    "UnsupportedError",
    "WebAnswer",
    "WebClient",
    "digest_files",
    "digest_ranges",
    "held_beneath",
    "install_hint",
    "list_beneath",
    "new_hasher",
    "open_beneath",
    "opened_files",
    "read_beneath",
    "read_json",
    "read_json_object",
    "read_key",
    "read_small_file",
    "read_token",
    "recognized",
    "replace_file",
    "status_beneath",
    "tree_digest",
    "unchanged",
    "walk_beneath",
]


_ON_FIRST_USE = {
    "Archive": "repoagent.api.archives",
    "FileRange": "repoagent.beneath.digests",
    "ModelConfig": "repoagent.config",
    "WebAnswer": "repoagent.web",
    "WebClient": "repoagent.web",
    "digest_files": "repoagent.beneath.digests",
    "digest_ranges": "repoagent.beneath.digests",
    "new_hasher": "repoagent.beneath.digests",
    "tree_digest": "repoagent.beneath.digests",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)
