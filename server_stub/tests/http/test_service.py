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
        self.on_behind: Callable[[bool], None] | None = None
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


# Finding routes.


def _route(pattern: str) -> Route:
    def call(_: Request, __: Params) -> Response:
        return Response()

    return Route(pattern, frozenset({b"GET"}), answer=call)


_MODEL = _route("/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?")
_ROUTER = Router([_route("/v2"), _MODEL])


def test_the_parts_of_a_path_are_named_and_decoded() -> None:
    match = _ROUTER.match(b"/v2/models/a%20b%2Fc?x=1")
    assert match is not None
    assert match.route is _MODEL
    assert match.params == {"model": "a b/c", "version": ""}


def test_a_path_must_match_whole() -> None:
    for target in (b"/v2/", b"/v2/models", b"/v2/models/m/", b"v2", b"", b"*", b"/v2/models/m/versions/x"):
        assert _ROUTER.match(target) is None


def test_an_absolute_target_is_understood() -> None:
    match = _ROUTER.match(b"http://host:8000/v2/models/m")
    assert match is not None
    assert match.params["model"] == "m"


def test_bytes_beyond_ascii_do_no_harm() -> None:
    assert _ROUTER.match(b"/v2/models/\xff\xfe") is not None
    assert _ROUTER.match(b"\xff") is None


def test_known_targets_are_remembered_but_not_without_end() -> None:
    router = Router([_MODEL])
    first = router.match(b"/v2/models/m0")
    assert router.match(b"/v2/models/m0") is first
    for number in range(5000):
        assert router.match(b"/v2/models/m%d" % number) is not None
    assert len(router._seen) <= 1024
