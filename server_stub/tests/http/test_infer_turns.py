"""Requests that come in one turn of the event loop do not disturb each other."""

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
    return InferRoute(Inference(core, Mailbox(loop)), LongWork(loop, ThreadPoolExecutor(1)))


def _send(
    route: InferRoute, exchange: _Exchange, body: bytes = _BODY, model: str = "ident", alone: bool = False
) -> None:
    request = Request(b"POST", b"/v2/models/%b/infer" % model.encode(), [], Frame(len(body)), body, alone)
    route(request, {"model": model, "version": ""}, exchange)


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
