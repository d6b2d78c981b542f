import asyncio
from collections.abc import Iterable
from typing import Any

from repoagent_server.handlers.forwarding import HeaderForwarding
from repoagent_server.handlers.inference import Inference
from repoagent_server.handlers.requested_outputs import RequestedOutputs
from repoagent_server.shared.mailbox import Answer, Mailbox

from repoagent.serving.requests.request import Asked, InferResponse

_HEADERS = [(b"X-User", b"ada"), (b"Host", b"localhost")]


class _Answer(Answer):
    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(mailbox)
        self.came: list[tuple[InferResponse | None, bool]] = []

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        self.came.append((response, final))


def _inference(core: Any, pattern: str = "") -> Inference:
    return Inference(core, Mailbox(asyncio.get_running_loop()), forwarding=HeaderForwarding(pattern))


async def test_headers_that_mean_nothing_are_not_even_read(core: Any) -> None:
    def headers() -> Iterable[tuple[bytes, bytes]]:
        raise AssertionError("nobody asked")

    context = _inference(core).context(headers)
    assert (dict(context.parameters), context.trace_context) == ({}, None)


async def test_chosen_headers_become_parameters_of_every_request_of_a_call(core: Any) -> None:
    inference = _inference(core, "x-.*")
    context = inference.context(lambda: _HEADERS)
    for _ in range(2):
        asked = Asked("ident", {}, parameters={"own": 1})
        request = inference.prepare(asked, _Answer(inference.mailbox), context)
        assert request.asked.parameters == {"own": 1, "X-User": "ada"}


async def test_no_headers_at_all_are_fine(core: Any) -> None:
    """gRPC has None for a call without metadata."""
    missing: Any = None
    assert _inference(core, "x-.*").context(lambda: missing).parameters == {}


async def test_a_refusal_by_the_core_is_an_answer(core: Any) -> None:
    inference = _inference(core)
    answer = _Answer(inference.mailbox)
    request = inference.prepare(Asked("absent", {}), answer, requested=RequestedOutputs(), refuses_decoupled="why")
    inference.submit(request)
    ((response, final),) = answer.came
    assert response is not None
    assert response.error is not None
    assert "absent" in response.error.message
    assert final
    assert request.refuses_decoupled == "why"
