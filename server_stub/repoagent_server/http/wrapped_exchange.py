"""An exchange around another one: what changes, or notes, answers on their way out."""

from collections.abc import Callable

from repoagent_server.http.messages import Exchange, Response

__all__ = ["WrappedExchange"]


class WrappedExchange:
    """Passes everything on to ``inner``: an :class:`~repoagent_server.http.messages.Exchange` to inherit from."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner

    @property
    def on_cancel(self) -> Callable[[], None] | None:
        return self._inner.on_cancel

    @on_cancel.setter
    def on_cancel(self, value: Callable[[], None] | None) -> None:
        self._inner.on_cancel = value

    def respond(self, response: Response) -> None:
        self._inner.respond(response)

    def begin(self, head: Response) -> None:
        self._inner.begin(head)

    def write(self, piece: bytes) -> None:
        self._inner.write(piece)

    def end(self) -> None:
        self._inner.end()
