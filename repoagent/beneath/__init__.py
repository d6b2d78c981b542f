"""Files beneath a root, whatever their names are and whatever changes meanwhile.

Every name that comes from a model, a configuration or a client passes through here. :func:`open_beneath` opens it;
:func:`unchanged` is for what a library can only open by its path. The module ``digests`` is imported by itself: most
programs hash nothing.
"""

from repoagent.beneath.opening import (
    DEEPEST,
    TreeEntry,
    check_depth,
    check_file,
    held_beneath,
    list_beneath,
    open_beneath,
    open_directory,
    read_at_most,
    read_beneath,
    read_small_file,
    read_up_to,
    relative_parts,
    shown,
    status_beneath,
    walk_beneath,
)
from repoagent.beneath.unchanged import FileState, Watched, file_state, unchanged, wait_for_clock

__all__ = [
    "DEEPEST",
    "FileState",
    "TreeEntry",
    "Watched",
    "check_depth",
    "check_file",
    "file_state",
    "held_beneath",
    "list_beneath",
    "open_beneath",
    "open_directory",
    "read_at_most",
    "read_beneath",
    "read_small_file",
    "read_up_to",
    "relative_parts",
    "shown",
    "status_beneath",
    "unchanged",
    "wait_for_clock",
    "walk_beneath",
]
