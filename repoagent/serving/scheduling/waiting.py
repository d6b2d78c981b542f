"""For callers that want to wait for the answer of a scheduler that only answers through senders."""

from collections.abc import Callable

from repoagent.serving.request import InferRequest, InferResponse
from repoagent.serving.senders import CollectingSender

__all__ = ["submit_and_wait"]


def submit_and_wait(submit: Callable[[InferRequest], None], request: InferRequest, model_name: str) -> InferResponse:
    """Give ``request`` to ``submit`` and return its one answer; the request's own sender is not used.

    Raises:
        RepoAgentError: the answer is an error.
    """
    own = request.sender
    collector = CollectingSender()
    request.sender = collector
    try:
        submit(request)
        return collector.result(model_name)
    finally:
        request.sender = own
