"""Weights in files of their own: which files a model may name, and how it gets those that are in memory.

``benchmarks/external_data.py`` loads a model with more than 2 GiB of them, which no ONNX file of its own may have.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from repoagent.storage.files.files import ModelFiles

__all__ = ["NO_FOLDER", "add_external_data", "confine", "walk"]

NO_FOLDER: Final = "/dev/null"
"""A place in which there can be no file, whatever a name after it looks like."""
_FOLDER: Final = "session.model_external_initializers_file_folder_path"


def confine(options: Any) -> None:
    """Let a session that is given its model as bytes read no file at all.

    Without this ONNX Runtime takes the names of such a model to begin in the working directory of the process.
    """
    options.add_session_config_entry(_FOLDER, NO_FOLDER)


def walk(files: ModelFiles, directory: str) -> Iterator[str]:
    """The paths of all files in ``directory`` of a model, relative to it."""
    for name in files.names(directory):
        path = f"{directory}/{name}"
        if files.names(path):
            yield from (f"{name}/{inside}" for inside in walk(files, path))
        else:
            yield name


def add_external_data(options: Any, contents: Mapping[str, bytes]) -> None:
    """Let a session find the files that its model names in memory; keep ``contents`` until it is made.

    ONNX Runtime copies what it needs while it makes the session, and looks at no file that the model does not name.
    It takes any number of bytes, but refuses a single tensor of more than 2 GiB.
    """
    if contents:
        lengths = [len(content) for content in contents.values()]
        options.add_external_initializers_from_files_in_memory(list(contents), list(contents.values()), lengths)
