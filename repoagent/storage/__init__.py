"""Where models come from and where their files are kept: repositories, workspaces, the cache, keys by reference."""

from repoagent.storage.cache.cache import Cache, CacheScope, Fetcher
from repoagent.storage.files.files import DirectoryFiles, MemoryFiles, ModelFiles, SourceFiles
from repoagent.storage.paths.names import join_inside
from repoagent.storage.repositories.listing import FileEntry, Fingerprint, fingerprint_of
from repoagent.storage.repositories.sources import MemorySource, ModelSource, Repository, open_source
from repoagent.storage.repositories.url import RepositoryUrl, parse_url
from repoagent.storage.secrets.keys import KeyProvider, builtin_providers, resolve_key
from repoagent.storage.workspaces.workspace import Workspace, WorkspaceRoot

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
    "fingerprint_of",
    "join_inside",
    "open_source",
    "parse_url",
    "resolve_key",
]
