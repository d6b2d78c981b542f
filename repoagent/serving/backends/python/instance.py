"""Running one instance of a Python model: requests in, responses through their senders."""

import inspect
import logging
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.context import ModelContext, entered
from repoagent.serving.backends.python.errors import let_interrupt_pass
from repoagent.serving.backends.python.importing import ImportedModel
from repoagent.serving.backends.python.messages import InferenceRequest, to_core
from repoagent.serving.request import InferRequest, InferResponse

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["PythonInstance"]

logger: Final = logging.getLogger(__name__)


class PythonInstance:
    """One object of ``TritonPythonModel``. ``execute`` is never called twice at once, except as a coroutine."""

    def __init__(
        self,
        model: Any,
        imported: ImportedModel,
        context: ModelContext,
        name: str,
        *,
        outputs: Sequence[str],
        decoupled: bool,
    ) -> None:
        """``outputs`` are the names of those that the configuration has; what else the model answers is left out."""
        self._model = model
        self._imported = imported
        self._context = context
        self._name = name
        self._outputs = tuple(outputs)
        self._decoupled = decoupled
        self._loop: _EventLoop | None = None

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Hand the batch to the model. Whatever it does wrong becomes the error of those it did not answer."""
        version = self._context.model_version
        views = [InferenceRequest.wrap(request, version, self._outputs) for request in requests]
        with entered(self._context):
            try:
                result = self._model.execute(views)
                if inspect.iscoroutine(result):
                    self._run(result, requests, views)
                else:
                    self._answer(result, requests, views)
            except BaseException as error:
                self._fail(error, requests, views)
                let_interrupt_pass(error)

    def close(self) -> None:
        """Finish coroutines, then ``finalize``; its errors are logged."""
        if self._loop is not None:
            self._loop.close()
        with entered(self._context):
            try:
                if hasattr(self._model, "finalize"):
                    self._model.finalize()
            except BaseException as error:
                logger.exception("finalize of model '%s' raised", self._context.model_name)
                let_interrupt_pass(error)
        del self._model
        self._imported.close()

    def _run(
        self, coroutine: Coroutine[Any, Any, Any], requests: Sequence[InferRequest], views: list[InferenceRequest]
    ) -> None:
        """``async def execute``: a decoupled model goes on while the next batch comes; another one is waited for."""
        self._loop = self._loop or _EventLoop(f"{self._name}-asyncio")
        future = self._loop.start(self._awaited(coroutine, requests, views))
        if not self._decoupled:
            future.result()

    async def _awaited(
        self, coroutine: Coroutine[Any, Any, Any], requests: Sequence[InferRequest], views: list[InferenceRequest]
    ) -> None:
        try:
            self._answer(await coroutine, requests, views)
        except BaseException as error:
            self._fail(error, requests, views)

    def _answer(self, result: Any, requests: Sequence[InferRequest], views: list[InferenceRequest]) -> None:
        if self._decoupled:
            if result is not None:
                raise InternalError(
                    f"Python model '{self._name}' is using the decoupled mode and the execute function must return "
                    "None."
                )
            return
        if not isinstance(result, list | tuple):
            raise InternalError(
                f"Failed to process the request(s) for model '{self._name}', message: Expected a list in the execute "
                f"return, found type '{type(result).__name__}'."
            )
        if len(result) != len(requests):
            raise InternalError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(result)}\n"
            )
        for request, view, response in zip(requests, views, result, strict=True):
            if response is None and not view.get_response_sender().open:
                continue  # Answered through its sender, as Triton allows.
            wanted = request.requested_outputs or self._outputs
            self._send(request, to_core(request, self._context.model_version, response, wanted))

    def _fail(self, error: BaseException, requests: Sequence[InferRequest], views: list[InferenceRequest]) -> None:
        logger.error("execute of model '%s' raised", self._context.model_name, exc_info=error)
        for request, view in zip(requests, views, strict=True):
            if view.get_response_sender().open:
                self._send(request, self._error_response(request, error))

    def _error_response(self, request: InferRequest, error: BaseException) -> InferResponse:
        if isinstance(error, RepoAgentError):
            shown = error
        else:
            shown = InternalError(
                f"Failed to process the request(s) for model instance '{self._name}', message: "
                f"{type(error).__name__}: {error}"
            )
        return InferResponse(request.model_name, self._context.model_version, id=request.id, error=shown)

    def _send(self, request: InferRequest, response: InferResponse) -> None:
        assert request.sender is not None
        request.sender.send(response, True)


class _EventLoop:
    """An asyncio loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._running: set[Future[None]] = set()
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "Future[None]":
        import asyncio

        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> None:
        for future in list(self._running):
            future.exception()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
