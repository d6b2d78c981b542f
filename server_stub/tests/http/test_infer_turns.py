"""Requests that come in one turn of the event loop are worked on in stages."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from repoagent_server.handlers.inference import Inference
from repoagent_server.http.infer import InferRoute
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Frame, Request, Response
from repoagent_server.shared.mailbox import Mailbox

from repoagent.serving.requests.request import InferRequest

_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
_ANSWER = b'"data":[1.0,2.0]'


class _Exchange:
    def __init__(self, log: list[str], answered: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.answered = answered
        self.on_cancel: Callable[[], None] | None = None
        self.response: Response | None = None

    def respond(self, response: Response) -> None:
        assert self.response is None
        self.response = response
        self.log.append("answered")
        self.answered()

    def begin(self, head: Response) -> None:
        raise AssertionError(head)

    def write(self, piece: bytes) -> None:
        raise AssertionError(piece)

    def end(self) -> None:
        raise AssertionError


@pytest.fixture
def log(core: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order."""
    log: list[str] = []
    submit = core.submit

    def logged(request: InferRequest) -> None:
        log.append("submitted")
        submit(request)

    monkeypatch.setattr(core, "submit", logged)
    return log


def _route(core: Any) -> InferRoute:
    loop = asyncio.get_running_loop()
    return InferRoute(Inference(core, Mailbox(loop)), loop, LongWork(loop, ThreadPoolExecutor(1)))


def _send(
    route: InferRoute, exchange: _Exchange, body: bytes = _BODY, model: str = "ident", alone: bool = False
) -> None:
    request = Request(b"POST", b"/v2/models/%b/infer" % model.encode(), [], Frame(len(body)), body, alone)
    route(request, {"model": model, "version": ""}, exchange)


async def test_all_are_submitted_before_the_first_is_answered(core: Any, log: list[str]) -> None:
    route, exchanges = _route(core), [_Exchange(log) for _ in range(3)]
    for exchange in exchanges:
        _send(route, exchange)
    assert log == []
    await asyncio.sleep(0)
    assert log == ["submitted"] * 3 + ["answered"] * 3
    assert all(exchange.response and _ANSWER in exchange.response.body for exchange in exchanges)


async def test_one_that_is_wrong_does_not_touch_the_others(
    core: Any, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    route, exchanges = _route(core), [_Exchange(log) for _ in range(4)]
    submit = core.submit

    def broken(request: InferRequest) -> None:
        if request.model_name == "str":
            raise ZeroDivisionError
        submit(request)

    monkeypatch.setattr(core, "submit", broken)
    for exchange, body, model in zip(
        exchanges, (_BODY, b"garbage", _BODY, _BODY), ("ident", "ident", "str", "ident"), strict=True
    ):
        _send(route, exchange, body, model)
    await asyncio.sleep(0)
    statuses = [exchange.response.status for exchange in exchanges if exchange.response]
    assert statuses == [200, 500, 500, 200]


@pytest.mark.parametrize(("count", "body"), [(64, _BODY), (2, _BODY + b" " * (1 << 17))])
async def test_many_or_large_ones_do_not_wait_for_the_turn_to_end(
    core: Any, log: list[str], count: int, body: bytes
) -> None:
    route, exchanges = _route(core), [_Exchange(log) for _ in range(count)]
    for exchange in exchanges:
        _send(route, exchange, body)
    assert all(exchange.response for exchange in exchanges)
    await asyncio.sleep(0)
    assert log.count("answered") == count


async def test_one_that_is_alone_is_answered_at_once(core: Any, log: list[str]) -> None:
    route, exchange = _route(core), _Exchange(log)
    _send(route, exchange, alone=True)
    assert exchange.response is not None


async def test_one_that_says_so_is_not_alone_when_another_waits(core: Any, log: list[str]) -> None:
    route, exchanges = _route(core), [_Exchange(log) for _ in range(2)]
    _send(route, exchanges[0])
    _send(route, exchanges[1], alone=True)
    assert log == []
    await asyncio.sleep(0)
    assert log == ["submitted"] * 2 + ["answered"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
async def test_requests_let_in_by_answers_wait_for_their_own_turn(core: Any, log: list[str], alone: bool) -> None:
    """A client may send ten thousand requests ahead; the stack must not grow with them."""
    route, left, done = _route(core), 20000, asyncio.Event()

    def answered() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            _send(route, _Exchange(log, answered), alone=alone)
        elif log.count("answered") == 20064:
            done.set()

    for _ in range(64):
        _send(route, _Exchange(log, answered))
    await asyncio.wait_for(done.wait(), 60)
