"""Executing a request on the thread that it came on: what the plain scheduler and the dynamic batcher share."""

from repoagent.serving.instances.base import Instance
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.measuring.run_time import RunTime
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import input_bytes
from repoagent.serving.scheduling.refuser import Refuser
from repoagent.serving.scheduling.steps import Refusal

__all__ = ["InlineExecution", "is_quick_for"]


def is_quick_for(run_time: RunTime, request: InferRequest) -> bool:
    """Whether a model that is quick is so for ``request``: the thread that submits it may be an event loop."""
    return input_bytes(request.inputs) <= run_time.quick_bytes


class InlineExecution:
    """The instances of a scheduler, for threads that execute requests themselves."""

    def __init__(self, model_name: str, pool: InstancePool[Instance], refuser: Refuser) -> None:
        self._model_name = model_name
        self._pool = pool
        self._refuser = refuser
        self._closed = False

    def _take(self, request: InferRequest) -> Instance:
        """Wait for an instance; :meth:`_call` or :meth:`_execute_on` gives it back.

        Raises:
            CancelledError: the request was cancelled meanwhile.
            UnavailableError: its timeout expired, or the model is being unloaded.
        """
        timeout_us = request.asked.timeout_us
        instance = self._pool.take(timeout_us / 1e6 if timeout_us else None, request)
        if instance is None:
            raise self._refuser.count(self._refusal(request))
        return instance

    def _call(self, instance: Instance, request: InferRequest) -> InferResponse:
        """Execute ``request`` and return its answer."""
        try:
            if request.cancelled or self._closed:
                raise self._refuser.count(self._refusal(request))
            return instance.call(request)
        finally:
            self._pool.give(instance)

    def _execute_on(self, instance: Instance, request: InferRequest) -> None:
        """Execute ``request``; the answer goes to its sender."""
        try:
            if request.cancelled or self._closed:
                self._refuser.answer(self._refusal(request))
            else:
                instance.execute((request,))
        finally:
            self._pool.give(instance)

    def _refusal(self, request: InferRequest) -> Refusal:
        """Why ``request`` is not executed."""
        if request.cancelled:
            return Refusal.cancelled(request)
        return Refusal.unloaded(request, self._model_name) if self._closed else Refusal.expired(request)
