"""A memory filesystem that only its holder can reach; fsspec's own is one store for the whole process."""

from typing import Any

__all__ = ["new_memory_filesystem"]


def new_memory_filesystem() -> Any:
    """Return a new, empty fsspec memory filesystem with a store of its own."""
    from fsspec.implementations.memory import MemoryFileSystem

    # fsspec keeps the store on the class, and instances in a cache: a class each avoids both.
    kind = type("PrivateMemoryFileSystem", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})
    return kind()
