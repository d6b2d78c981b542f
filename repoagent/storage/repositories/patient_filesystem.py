"""A remote filesystem whose callers need not wait for ever."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

from repoagent.storage.repositories.remote_calls import RemoteCalls

__all__ = ["PatientFilesystem"]

_LIMITED: Final = frozenset(
    {
        "checksum",
        "created",
        "du",
        "exists",
        "find",
        "glob",
        "info",
        "isdir",
        "isfile",
        "ls",
        "modified",
        "size",
        "sizes",
    }
)
"""What asks a store about names: the answer is small, so its time is limited."""
_HERE: Final = frozenset({"clear_instance_cache", "current", "invalidate_cache", "to_dict", "to_json", "walk"})
"""What asks nothing, or hands out answers one by one."""


class PatientFilesystem:
    """An fsspec filesystem whose calls go through ``calls``. Everything else is that of ``fs``."""

    def __init__(self, fs: Any, calls: RemoteCalls) -> None:
        self._fs = fs
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._fs, name)
        if name.startswith("_") or name in _HERE or not callable(value):
            return value
        return self._through_calls(value, limited=name in _LIMITED)

    def _through_calls(self, method: Callable[..., Any], *, limited: bool) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            return self._calls.run(partial(method, *arguments, **options), limited=limited)

        return call
