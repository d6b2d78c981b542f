"""What a handler sees of its call: of grpcio's ``ServicerContext`` what the handlers of this server use."""

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Aborted", "Context"]


class Aborted(Exception):
    """The handler has ended its call with a status."""


class Answerer(Protocol):
    """The call behind a context."""

    def metadata(self) -> Sequence[tuple[str, str | bytes]]: ...

    def finish(self, status: int, text: str) -> None: ...

    async def send(self, message: Any) -> None: ...


class Context:
    """One call. Belongs to the event loop."""

    def __init__(self, call: Answerer, caller: Any = None) -> None:
        """``caller``: the client behind the call, where access is controlled."""
        self._call = call
        self.caller = caller

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of the client: text, or bytes under names that end with ``-bin``."""
        return tuple(self._call.metadata())

    async def abort(self, code: Any, details: str = "") -> None:
        """End the call with a status of ``grpc.StatusCode``.

        Raises:
            Aborted: always.
        """
        self._call.finish(code.value[0], details)
        raise Aborted

    async def write(self, message: Any) -> None:
        """Send a message; returns when the client has room for another one."""
        await self._call.send(message)
