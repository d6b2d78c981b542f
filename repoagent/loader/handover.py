"""From the last agent to the backend: the files of the model, and the end of plaintext that nobody needs."""

from pathlib import Path

from repoagent.loader.context import LoadContext
from repoagent.storage.files.files import DirectoryFiles, MemoryFiles, ModelFiles, SourceFiles
from repoagent.storage.repositories.sources import MemorySource

__all__ = ["open_files"]


def open_files(load: LoadContext) -> ModelFiles:
    """The files at the last location of ``load``. What is not here comes here when a backend wants a path."""
    source = load.place.source
    if isinstance(source, MemorySource):
        return MemoryFiles(source.files, lambda: load.directories.get("files"))
    if source.is_remote:
        return SourceFiles(source, load.fetcher(source))
    return DirectoryFiles(Path(source.root))
