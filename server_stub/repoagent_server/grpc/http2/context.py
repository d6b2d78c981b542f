"""What a handler sees of its call: of grpcio's ``ServicerContext`` what the handlers of this server use."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Aborted", "Context"]


class Aborted(Exception):
    """The handler has ended its call with a status."""


class Answerer(Protocol):
    """The call behind a context."""

    def metadata(self) -> Sequence[tuple[str, str | bytes]]: ...

    @property
    def request_id(self) -> str: ...

    @property
    def address(self) -> str: ...

    def finish(self, status: int, text: str) -> None: ...

    async def send(self, message: Any) -> None: ...

    def send_now(self, message: bytes) -> bool: ...

    def hand_to(self, taker: Callable[[bytes], bool]) -> None: ...


class Context:
    """One call. Belongs to the event loop."""

    def __init__(self, call: Answerer, caller: Any = None) -> None:
        """``caller``: the client behind the call, where access is controlled."""
        self._call = call
        self.caller = caller

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of the client: text, or bytes under names that end with ``-bin``."""
        return tuple(self._call.metadata())

    @property
    def request_id(self) -> str:
        """The client's ``x-request-id``, "" if there is none."""
        return self._call.request_id

    @property
    def address(self) -> str:
        """Where the connection comes from."""
        return self._call.address

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

    def write_now(self, message: bytes) -> bool:
        """Send an encoded message if nothing is in its way, without a task's turn; False if it was not sent."""
        return self._call.send_now(message)

    def take_now(self, taker: Callable[[bytes], bool]) -> None:
        """Hand small messages to ``taker`` as they come, while none waits for the handler.

        A message that ``taker`` does not take waits for the handler, as all that follow it do.
        """
        self._call.hand_to(taker)
