"""Sending a request to the core: at once on this thread where that is the fastest way, through its queues elsewhere.

Handing a request to another thread and its answer back costs about ten times a small model's execution. So the
thread that asks executes a request to a model that is known to be quick, and the response waits in the iterator. A
thread that always waits for its answers (see :class:`~repoagent.server.callers.Caller`) does so too, if an instance is
idle. All others are submitted, so that several requests of one thread can run, and batch, together.
"""

import asyncio
import queue
from typing import TYPE_CHECKING, Any

from repoagent.errors import RepoAgentError
from repoagent.server.callers import CALLER
from repoagent.server.iterators import AsyncQueueSender, AsyncResponseIterator, QueueSender, ResponseIterator
from repoagent.server.request import InferenceRequest, core_request
from repoagent.server.response import InferenceResponse, error_response, make_response
from repoagent.serving.requests.request import InferRequest

if TYPE_CHECKING:
    from repoagent.serving.core import ServingCore

__all__ = ["infer", "infer_async"]


def infer(core: "ServingCore", request: InferenceRequest, raise_on_error: bool) -> ResponseIterator:
    """Send ``request`` and return its responses.

    Raises:
        RepoAgentError: the request does not fit the model, or there is no such model. Failures of the model itself
            come with the response.
        TypeError: a field of the request has a value of the wrong type.
    """
    prepared = core_request(request)
    if request.response_queue is not None and isinstance(request.response_queue, asyncio.Queue):
        raise TypeError("infer cannot fill an asyncio.Queue: give it a queue.SimpleQueue, or use async_infer")
    serial = CALLER.ask()
    response = _execute_here(core, request, prepared)
    if response is not None:
        return ResponseIterator(prepared, [response].pop, raise_on_error, serial)
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    prepared.redirect(QueueSender(request, responses))
    core.check(prepared)
    core.submit(prepared)
    return ResponseIterator(prepared, responses.get, raise_on_error, serial)


def _execute_here(core: "ServingCore", request: InferenceRequest, prepared: InferRequest) -> InferenceResponse | None:
    """The response to a request that this thread executes by itself; None if it should not."""
    try:
        answer = core.infer_here(prepared, CALLER.patient)
        if answer is None:
            return None
        response = make_response(request, answer, True)
    except RepoAgentError as error:
        # Faults of the request itself are raised at once, as in Triton, all others come with the response.
        core.check(prepared)
        response = error_response(request, error)
    if request.response_queue is not None:
        user_queue: Any = request.response_queue
        user_queue.put(response)
    return response


def infer_async(core: "ServingCore", request: InferenceRequest, raise_on_error: bool) -> AsyncResponseIterator:
    """The same for the running event loop, which is never blocked.

    Raises:
        RepoAgentError: the request does not fit the model, or there is no such model.
        RuntimeError: no event loop is running.
    """
    if not isinstance(request.response_queue, asyncio.Queue | None):
        raise TypeError(f"async_infer fills an asyncio.Queue, not {type(request.response_queue).__name__}")
    responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()
    prepared = core_request(request, AsyncQueueSender(request, responses))
    core.check(prepared)
    core.submit(prepared)
    return AsyncResponseIterator(prepared, responses, raise_on_error)
