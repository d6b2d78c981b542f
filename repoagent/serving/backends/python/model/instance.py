"""Running one instance of a Python model: requests in, responses through their senders."""

import logging
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from types import CoroutineType
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.nested_text import read_json
from repoagent.serving.backends.python.model.context import (
    ModelContext,
    entered,
    fault_text,
    let_interrupt_pass,
    running,
)
from repoagent.serving.backends.python.model.model_module import OwnModules, import_model
from repoagent.serving.backends.python.model.request import InferenceRequest
from repoagent.serving.backends.python.model.response import (
    FINAL,
    InferenceResponse,
    InferenceResponseSender,
    RequestRules,
)
from repoagent.serving.backends.python.model.utils import ModelConfig
from repoagent.serving.instances.backend import BackendInstance
from repoagent.serving.requests.request import InferRequest

_PATIENCE_SECONDS: Final = 5.0


class EventLoop:
    """An asyncio loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._running: set[Future[None]] = set()
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "Future[None]":
        """Run ``coroutine`` beside others."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> None:
        """Let the coroutines end. Those that do not are cancelled, and left behind if they do not hear of it."""
        import asyncio

        if wait(list(self._running), _PATIENCE_SECONDS).not_done:
            cancelling = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
            with suppress(TimeoutError):
                cancelling.result(2 * _PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        import asyncio

        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)


logger: Final = logging.getLogger(__name__)


class PythonInstance(BackendInstance):
    """One object of ``TritonPythonModel``. ``execute`` is never called twice at once, except as a coroutine."""

    def __init__(
        self,
        model: Any,
        modules: OwnModules,
        context: ModelContext,
        name: str,
        rules: RequestRules,
        *,
        iterative: bool = False,
    ) -> None:
        self._model = model
        self._modules = modules
        self._context = context
        self._name = name
        self._rules = rules
        self._decoupled = rules.decoupled
        self._unanswered = rules.unanswered
        self._iterative = iterative
        self._loop: EventLoop | None = None

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Hand the batch to the model. Whatever it does wrong becomes the error of those it did not answer."""
        views = [InferenceRequest.wrap(request, self._rules) for request in requests]
        if self._decoupled:
            self._unanswered.update(view.own_sender()[0] for view in views)
        token = running.set(self._context)  # As ``entered`` does, in a sixth of its time.
        try:
            result = self._model.execute(list(views))
            if isinstance(result, CoroutineType):
                self._run(result, views)
            else:
                self._answer(result, views)
                if self._unanswered:
                    self._fail_abandoned(views)
        except BaseException as error:
            self._fail(error, views)
            let_interrupt_pass(error)
        finally:
            running.reset(token)

    @property
    def asks(self) -> bool:
        """Whether the model has a method for its readiness."""
        return callable(getattr(self._model, "is_ready", None))

    def is_ready(self) -> bool:
        """What the model's ``is_ready`` returns; on any thread, also while it executes. Raises what that raises, and
        ``TypeError`` if it returns something else."""
        with entered(self._context):
            result = self._model.is_ready()
            if isinstance(result, CoroutineType):
                import asyncio  # Most models never do this, and it takes a while.

                result = asyncio.run(result)
        if not isinstance(result, bool):
            raise TypeError(f"is_ready must return a bool, not {type(result).__name__}")
        return result

    def close(self) -> None:
        """Finish coroutines, then ``finalize``; its errors are logged. What is then unanswered gets an error."""
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
        self._modules.close()
        for sender in list(self._unanswered):
            sender.fail(UnavailableError(f"model '{self._context.model_name}' is unloaded"))

    def _run(self, coroutine: Coroutine[Any, Any, Any], views: list[InferenceRequest]) -> None:
        """``async def execute``: a decoupled model goes on while the next batch comes; another one is waited for."""
        self._loop = self._loop or EventLoop(f"{self._name}-asyncio")
        future = self._loop.start(self._awaited(coroutine, views))
        if not self._decoupled:
            future.result()

    async def _awaited(self, coroutine: Coroutine[Any, Any, Any], views: list[InferenceRequest]) -> None:
        try:
            self._answer(await coroutine, views)
        except BaseException as error:
            self._fail(error, views)
        if self._unanswered:
            self._fail_abandoned(views)

    def _answer(self, result: Any, views: list[InferenceRequest]) -> None:
        """Send what ``execute`` returned. Whose response is None is answered through its sender, now or later."""
        responses = self._responses(result, len(views))
        for view, response in zip(views, responses, strict=True):
            sender = view.own_sender()[0]
            if view.rescheduled:
                self._reschedule(sender, response)
            elif isinstance(response, InferenceResponse):
                sender.send(response, FINAL)
            elif response is not None:
                sender.fail(
                    InternalError(
                        "Expected an 'InferenceResponse' object in the execute function return list, found type "
                        f"'{type(response)}'."
                    )
                )
            elif not self._decoupled:
                self._unanswered.add(sender)
                if not sender.open:  # It may have been answered just before.
                    self._unanswered.discard(sender)

    def _reschedule(self, sender: InferenceResponseSender, response: Any) -> None:
        """Have a request executed again; one that has had its final response is over."""
        if not self._iterative:
            sender.fail(
                InternalError(
                    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, but the configuration of model "
                    f"'{self._context.model_name}' has no 'sequence_batching {{ iterative_sequence: true }}'"
                )
            )
        elif response is not None:
            sender.fail(
                InternalError(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            )
        elif not sender.reschedule():
            logger.error("model '%s' rescheduled a request that it had answered", self._context.model_name)

    def _responses(self, result: Any, count: int) -> Sequence[Any]:
        """One for each of ``count`` requests; raises ``InternalError`` unless ``execute`` may return ``result``."""
        if result is None:
            return [None] * count
        if self._decoupled:
            raise InternalError(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(result, list | tuple):
            raise InternalError(
                f"Failed to process the request(s) for model '{self._name}', message: Expected a list in the execute "
                f"return, found type '{type(result)}'."
            )
        if len(result) != count:
            raise InternalError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:{len(result)}\n"
            )
        return result

    def _fail_abandoned(self, views: list[InferenceRequest]) -> None:
        """Answer what no one else can: the model has kept neither the request nor its sender. Empties ``views``."""
        senders = [(weakref.ref(view), *view.own_sender()) for view in views]
        views.clear()
        for request, sender, taken in senders:
            if not taken and request() is None:
                sender.fail(
                    InternalError(
                        f"Failed to process the request(s) for model instance '{self._name}', message: execute "
                        "returned no response for this request, and kept neither it nor its response sender"
                    )
                )

    def _fail(self, error: BaseException, views: list[InferenceRequest]) -> None:
        logger.error("execute of model '%s' raised", self._context.model_name, exc_info=error)
        for view in views:
            view.own_sender()[0].fail(self._shown(error))

    def _shown(self, error: BaseException) -> RepoAgentError:
        if isinstance(error, RepoAgentError):
            return error
        hint = ""
        if self._rules.shared and isinstance(error, ValueError) and "read-only" in str(error):
            hint = " (in process, inputs belong to others as well: copy them, or set EXECUTION to 'process')"
        return InternalError(
            f"Failed to process the request(s) for model instance '{self._name}', message: "
            f"{fault_text(error, self._context, hint)}"
        )


def completed(path: Path, context: ModelContext, config: str, *, alone: bool = False) -> dict[str, Any] | None:
    """What ``auto_complete_config`` makes of a configuration in JSON; None if the model has no such function.

    ``alone``: see :func:`import_model`. Raises ``InternalError`` if the file cannot be run, or the function raised.
    """
    model_class, modules = import_model(path, context, alone=alone)
    try:
        complete = getattr(model_class, "auto_complete_config", None)
        return None if complete is None else _call(complete, ModelConfig(config), context).as_dict()
    finally:
        modules.close()


def started(
    path: Path, context: ModelContext, arguments: dict[str, str], *, decoupled: bool, alone: bool = False
) -> PythonInstance:
    """An instance of a model whose ``initialize`` has been called with ``arguments``.

    ``alone``: see :func:`import_model`. Raises ``InternalError`` if the file or ``initialize`` raised.
    """
    model_class, modules = import_model(path, context, alone=alone)
    try:
        model = _initialized(model_class, context, arguments)
    except BaseException:
        modules.close()
        raise
    config = read_json(arguments["model_config"])
    outputs = tuple(item["name"] for item in config.get("output", ()))
    iterative = bool(config.get("sequence_batching", {}).get("iterative_sequence"))
    rules = RequestRules(context.model_version, outputs, decoupled, shared=not alone)
    return PythonInstance(model, modules, context, arguments["model_instance_name"], rules, iterative=iterative)


def _call(complete: Any, config: ModelConfig, context: ModelContext) -> ModelConfig:
    with entered(context):
        try:
            result = complete(config)
        except BaseException as error:
            let_interrupt_pass(error)
            raise InternalError(fault_text(error, context)) from error
    if not isinstance(result, ModelConfig):
        raise InternalError(
            f"auto_complete_config of model '{context.model_name}' must return the ModelConfig that it was given, "
            f"not {type(result).__name__}"
        )
    return result


def _initialized(model_class: Any, context: ModelContext, arguments: dict[str, str]) -> Any:
    with entered(context):
        try:
            model = model_class()
            if hasattr(model, "initialize"):
                model.initialize(arguments)
        except BaseException as error:
            let_interrupt_pass(error)
            raise InternalError(fault_text(error, context)) from error
    if not callable(getattr(model, "execute", None)):
        raise InternalError(f"the class TritonPythonModel of model '{context.model_name}' has no execute")
    return model
