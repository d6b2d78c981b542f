"""Where the answers of routes are made."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from repoagent_server.http.messages import Frame, Request, Response
from repoagent_server.http.service import HttpService, Params, Route, Router
from repoagent_server.shared.pools import Pools


class _Exchange:
    """Takes one response."""

    def __init__(self, answered: "asyncio.Future[Response]") -> None:
        self.on_cancel: Callable[[], None] | None = None
        self.respond = answered.set_result

    def begin(self, head: Response) -> None:
        raise AssertionError("the answer comes whole")

    def write(self, piece: bytes) -> None:
        raise AssertionError("the answer comes whole")

    def end(self) -> None:
        raise AssertionError("the answer comes whole")


@pytest.mark.parametrize(
    ("pool", "asks", "thread"),
    [("", None, "MainThread"), ("asks", False, "MainThread"), ("asks", True, "t-asks_0"), ("work", False, "t-block")],
)
def test_an_answer_is_made_where_its_route_has_it_made(pool: str, asks: bool | None, thread: str) -> None:
    def answer(_: Request, __: Params) -> Response:
        return Response(body=threading.current_thread().name.encode())

    async def ask(pools: Pools) -> Response:
        loop = asyncio.get_running_loop()
        wants = None if asks is None else lambda _: asks
        route = Route("/x", frozenset({b"GET"}), answer, pool=pool, asks=wants)  # type: ignore[arg-type]
        answered: asyncio.Future[Response] = loop.create_future()
        service = HttpService(Router([route]), loop, pools)
        service.handle(Request(b"GET", b"/x", (), Frame()), _Exchange(answered))
        return await answered

    with Pools("t") as pools:
        assert bytes(asyncio.run(ask(pools)).body).decode().startswith(thread)
