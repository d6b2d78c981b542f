"""Iterative sequences: a request is executed again and again, for as long as the model reschedules it."""

import itertools
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from repoagent.config.model_config_pb2 import TYPE_STRING, ModelSequenceBatching
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.sequence import SequenceScheduler

if TYPE_CHECKING:
    from repoagent.config import ModelConfig


class IterativeScheduler(Scheduler):
    """Makes a sequence of every request: each of its executions is a request of the sequence to ``inner``.

    The first one has the START flag. A sequence ends with the first execution after which the model does not
    reschedule the request; an ID that the client gave it is its own as long as no other request has it.
    """

    def __init__(self, model_name: str, config: "ModelConfig", inner: SequenceScheduler) -> None:
        super().__init__(model_name)
        self._inner = inner
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._texts = _ids_are_texts(config)
        self._ids: set[int | str] = set()
        """Of the sequences under way."""

    @property
    def waiting(self) -> int:
        return self._inner.waiting

    def submit(self, request: InferRequest) -> None:
        _Iterations(request, self._begin(request.asked.correlation_id), self).go_on(first=True)

    def _begin(self, given: int | str) -> int | str:
        with self._lock:
            sequence = given
            while not sequence or sequence in self._ids:
                number = next(self._numbers)
                sequence = str(number) if self._texts else number
            self._ids.add(sequence)
        return sequence

    def execute(self, turn: InferRequest) -> None:
        """Have the next request of a sequence executed."""
        self._inner.submit(turn)

    def end(self, sequence: int | str) -> None:
        """The sequence has no further request."""
        self._inner.end(sequence)
        with self._lock:
            self._ids.discard(sequence)

    # retire does nothing: the requests that have come still have requests to their sequences.

    def close(self) -> None:
        self._inner.close()


class _Iterations:
    """One request and its executions; the sender of each of them."""

    def __init__(self, request: InferRequest, sequence: int | str, scheduler: IterativeScheduler) -> None:
        self._request = request
        self._sequence = sequence
        self._scheduler = scheduler
        self._turn = request

    def go_on(self, *, first: bool) -> None:
        request = self._request
        turn = self._turn = InferRequest(
            replace(
                request.asked,
                inputs=request.inputs,
                correlation_id=self._sequence,
                sequence_start=first,
                sequence_end=False,
            ),
            self,
        )
        turn.arrival_ns = request.arrival_ns if first else time.monotonic_ns()
        turn.classes = request.classes
        turn.output_places = request.output_places
        request.on_cancel = turn.cancel
        turn.cancelled = request.cancelled  # Perhaps since it was copied.
        self._scheduler.execute(turn)

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`."""
        if final and self._turn.rescheduled:
            self.go_on(first=False)
            return
        if final:
            self._request.times = self._turn.times
            self._request.on_cancel = None
            self._scheduler.end(self._sequence)
        self._request.send(response, final)


def _ids_are_texts(config: "ModelConfig") -> bool:
    kind = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    controls = [control for item in config.sequence_batching.control_input for control in item.control]
    return any(control.kind == kind and control.data_type == TYPE_STRING for control in controls)
