"""What the tests of the core share."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from repoagent.errors import RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.requests.request import InferRequest, InferResponse

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]


def first(response: InferResponse) -> float:
    return float(response.outputs["y"].array[0, 0])


class Answers:
    """A sender that keeps what it is sent."""

    def __init__(self) -> None:
        self.responses: list[InferResponse] = []
        self.finals = 0
        self.complete = threading.Event()

    def send(self, response: InferResponse | None, final: bool) -> None:
        late = self.complete.is_set()
        self.responses += [] if response is None else [response]
        self.finals += final
        if final:
            self.complete.set()
        assert not late, "an answer after the final one"

    def wait(self) -> list[InferResponse]:
        """All responses, when the final one has come."""
        assert self.complete.wait(60)
        return self.responses

    @property
    def response(self) -> InferResponse:
        """The only one."""
        (response,) = self.wait()
        return response


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``call`` on a thread; its result or error is in the list after joining."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except RepoAgentError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def loads_cancelled(slots: Iterable[ModelSlot]) -> list[bool]:
    """Of each load that is under way, whether it is cancelled; loads may begin and end meanwhile."""
    return [pending.cancelled.is_set() for slot in slots for pending in tuple(slot._pending)]
