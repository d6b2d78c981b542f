"""Where models come from and where their files are kept: repositories, workspaces, the cache, keys by reference."""

from repoagent.storage.cache import Cache, CacheScope
from repoagent.storage.fetch import Fetcher
from repoagent.storage.files import DirectoryFiles, MemoryFiles, ModelFiles, SourceFiles
from repoagent.storage.fingerprint import FileEntry, Fingerprint
from repoagent.storage.keys import KeyProvider, builtin_providers, resolve_key
from repoagent.storage.paths import join_inside
from repoagent.storage.repository import Repository
from repoagent.storage.sources import MemorySource, ModelSource, open_source
from repoagent.storage.url import RepositoryUrl, parse_url
from repoagent.storage.workspace import Workspace, WorkspaceRoot

__all__ = [
    "Cache",
    "CacheScope",
    "DirectoryFiles",
    "Fetcher",
    "FileEntry",
    "Fingerprint",
    "KeyProvider",
    "MemoryFiles",
    "MemorySource",
    "ModelFiles",
    "ModelSource",
    "Repository",
    "RepositoryUrl",
    "SourceFiles",
    "Workspace",
    "WorkspaceRoot",
    "builtin_providers",
    "join_inside",
    "open_source",
    "parse_url",
    "resolve_key",
]
