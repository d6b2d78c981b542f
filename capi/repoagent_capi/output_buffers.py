"""Outputs that a model writes into memory of the C program, instead of having them copied there."""

from collections.abc import Iterator, Mapping
from typing import Any

from repoagent.errors import RepoAgentError
from repoagent.serving.requests.request import Asked, InferRequest, OutputPlace
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.servers import SERVERS

__all__ = ["OutputBuffers"]


class OutputBuffers(Mapping[str, OutputPlace]):
    """Those of one request: of the outputs that its client gets, each once. The program's allocator is asked late."""

    __slots__ = ("_asked", "_left", "_server", "_submission", "addresses")

    def __init__(self, submission: int, server: int, asked: Asked) -> None:
        self._submission = submission
        self._server = server
        self._asked = asked
        self._left: set[str] | None = None
        self.addresses: dict[str, int] = {}
        """Where the program's memory for an output begins."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __getitem__(self, name: str) -> "OutputPlace":
        self._names().remove(name)
        return _Place(self._submission, name, self.addresses)

    def _names(self) -> set[str]:
        if self._left is None:
            self._left = set(self._asked.requested_outputs or self._outputs())
        return self._left

    def _outputs(self) -> list[str]:
        """Not what is asked of the model, which may be more: states of a sequence are not the client's."""
        try:
            served = SERVERS[self._server].core.find(InferRequest(self._asked))
        except RepoAgentError:
            return []  # It was unloaded meanwhile.
        return [item.name for item in served.config.output]


class _Place:
    """An :class:`~repoagent.serving.requests.request.OutputPlace`."""

    def __init__(self, submission: int, name: str, addresses: dict[str, int]) -> None:
        self._submission = submission
        self._name = name
        self._addresses = addresses

    def room(self, byte_size: int) -> memoryview | None:
        place = lib.repoagent_place(self._submission, self._name.encode(), byte_size)
        if place == ffi.NULL or not byte_size:
            return None
        self._addresses[self._name] = int(ffi.cast("uintptr_t", place.base))
        # Whatever is made there keeps the view, and with it the program's memory.
        base: Any = ffi.gc(place.base, lambda _base: lib.repoagent_place_return(place))
        return memoryview(ffi.buffer(base, byte_size))
