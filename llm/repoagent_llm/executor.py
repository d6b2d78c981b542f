"""Executor: requests in, responses out; the batching happens behind it."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Final, overload

import numpy as np

from repoagent_llm.assembly import Assembly, assemble, check_managed_weights, load_draft_runner, load_runner
from repoagent_llm.engine.kv_event_buffer import KVCacheEventManager
from repoagent_llm.engine_config import EngineConfig
from repoagent_llm.runner.decoder_spec import parse_spec, read_spec
from repoagent_llm.runner.protocol import ModelRunner
from repoagent_llm.support import check_config, check_model_type
from repoagent_llm.types.enums import ModelType
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import (
    ExecutorStoppedError,
    QueueFullError,
    UnsupportedFeatureError,
)
from repoagent_llm.types.request import Request
from repoagent_llm.types.result import Response
from repoagent_llm.types.stats import DebugTensorsPerIteration, IterationStats, RequestStatsPerIteration

_CONSTRUCTORS: Final = (
    ("model_path", "model_type", "executor_config"),
    ("encoder_model_path", "decoder_model_path", "model_type", "executor_config"),
    ("engine_buffer", "json_config_str", "model_type", "executor_config", "managed_weights"),
    (
        "encoder_engine_buffer",
        "encoder_json_config_str",
        "decoder_engine_buffer",
        "decoder_json_config_str",
        "model_type",
        "executor_config",
    ),
)


class Executor:
    """Serves one model. All methods may be called from any thread.

    As a context manager it shuts down at the end. It also shuts down when it is no longer referenced, and when the
    program ends.

    A model is a decoder folder (genai_config.json and its graph), or an engine buffer: the graph's bytes, the text of
    genai_config.json, and the weights by name that the graph keeps outside. ``from_runner`` takes any runner.
    """

    _assembly: Assembly

    @overload
    def __init__(self, model_path: str | Path, model_type: ModelType, executor_config: ExecutorConfig) -> None: ...

    @overload
    def __init__(
        self,
        encoder_model_path: str | Path,
        decoder_model_path: str | Path,
        model_type: ModelType,
        executor_config: ExecutorConfig,
    ) -> None: ...

    @overload
    def __init__(
        self,
        engine_buffer: bytes | bytearray | memoryview,
        json_config_str: str,
        model_type: ModelType,
        executor_config: ExecutorConfig,
        managed_weights: Mapping[str, Any] = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        encoder_engine_buffer: bytes,
        encoder_json_config_str: str,
        decoder_engine_buffer: bytes,
        decoder_json_config_str: str,
        model_type: ModelType,
        executor_config: ExecutorConfig,
    ) -> None: ...

    def __init__(self, *args: Any, **named: Any) -> None:
        """Load a model and start.

        Raises ``DecoderError`` for what is no decoder ("File does not exist"),
        ``UnsupportedFeatureError`` for what no runner here can do.
        """
        args = tuple(_positional(args, named))
        from_buffer = len(args) in (4, 5) and isinstance(args[0], (bytes, bytearray, memoryview))
        if not from_buffer and len(args) != 3:
            _refuse_other_constructors(args)
        *source, model_type, config = args[:4] if from_buffer else args
        check_model_type(model_type)
        if not isinstance(config, ExecutorConfig):
            raise TypeError(f"Executor needs an ExecutorConfig, not {type(config).__name__}")
        own = _checked(config)
        if from_buffer:
            weights = args[4] if len(args) == 5 else {}
            check_managed_weights(weights)
            spec = parse_spec(source[1], bytes(source[0]), weights)
        else:
            spec = read_spec(Path(source[0]))
        self._start(load_runner(spec, own), own)

    @classmethod
    def from_runner(
        cls, runner: ModelRunner, executor_config: ExecutorConfig, draft_runner: ModelRunner | None = None
    ) -> "Executor":
        """Serve a runner that exists already; it is closed at shutdown.

        ``draft_runner``: in the place of ``DraftTargetDecodingConfig.speculative_model_dir``; closed as well.
        """
        executor = cls.__new__(cls)
        executor._start(runner, _checked(executor_config), draft_runner)
        return executor

    def _start(self, runner: ModelRunner, config: EngineConfig, draft_runner: ModelRunner | None = None) -> None:
        self._config = config
        self._assembly = assemble(runner, config, draft_runner or load_draft_runner(config, runner))
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._stopped = False
        self._arriving = 0  # requests that are being checked, and wait in no queue yet
        self._assembly.engine.start()
        # A caller that forgets to shut down, or ends by an exception, leaves no thread behind that holds a model.
        weakref.finalize(self, self._assembly.engine.stop)

    def enqueue_request(self, request: Request) -> int:
        """Queue a request; returns its id. See ``enqueue_requests``."""
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests; ids count up. A request that cannot be served gets an error response.

        Raises ``ExecutorStoppedError`` after shutdown and ``QueueFullError`` at the queue limit (none is accepted).
        """
        requests = list(requests)
        for item in requests:
            if not isinstance(item, Request):
                raise TypeError(f"enqueue_requests takes Requests, not a {type(item).__name__}")
        with self._lock:
            if not self.can_enqueue_requests():
                raise ExecutorStoppedError("Shutdown called, cannot enqueue requests")
            self._check_queue(len(requests))
            ids = [next(self._ids) for _ in requests]
            self._assembly.board.open(ids)
            self._arriving += len(ids)
        try:
            self._take_in(requests, ids)
        finally:
            with self._lock:
                self._arriving -= len(ids)
        return ids

    def _take_in(self, requests: Sequence[Request], ids: Sequence[int]) -> None:
        parts, tasks, refused = self._assembly, [], []
        for request_id, request in zip(ids, requests, strict=True):
            try:
                tasks.append(parts.intake.task(request, request_id))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # an id that was given out must be answered, whatever a library raises
                refused.append(Response.refused(request_id, request.client_id, error))
        parts.board.post(refused)
        parts.inbox.put(tasks)

    def _check_queue(self, more: int) -> None:
        limit = self._config.max_queue_size
        waiting = self._arriving + self._assembly.inbox.waiting() + len(self._assembly.scheduler.waiting)
        if limit and waiting + more > limit:
            raise QueueFullError(f"Maximum queue size of {limit} has been reached, please try again later")

    @overload
    def await_responses(self, timeout: timedelta | None = None, /) -> list[Response]: ...

    @overload
    def await_responses(self, id: int, timeout: timedelta | None = None, /) -> list[Response]: ...

    @overload
    def await_responses(self, ids: Sequence[int], timeout: timedelta | None = None, /) -> list[list[Response]]: ...

    @overload
    def await_responses(self, *, timeout: timedelta | None = None) -> list[Response]: ...

    @overload
    def await_responses(self, *, id: int, timeout: timedelta | None = None) -> list[Response]: ...

    @overload
    def await_responses(self, *, ids: Sequence[int], timeout: timedelta | None = None) -> list[list[Response]]: ...

    @overload
    def await_responses(self, id: int, /, *, timeout: timedelta | None) -> list[Response]: ...

    @overload
    def await_responses(self, ids: Sequence[int], /, *, timeout: timedelta | None) -> list[list[Response]]: ...

    def await_responses(self, *args: Any, **named: Any) -> list[Response] | list[list[Response]]:
        """Wait for responses: of any request, of one id, or of each of several ids.

        Without a timeout it waits for at least one response; with one it returns the responses that are there when it
        ends, perhaps none. An id whose final response was already taken gets an error response. Shutdown ends a wait.
        """
        which, timeout = _awaited(args, named)
        seconds = None if timeout is None else min(timeout.total_seconds(), threading.TIMEOUT_MAX)
        board = self._assembly.board
        if which is None:
            return board.take_any(seconds)
        if isinstance(which, (int, np.integer)):
            return board.take([index(which)], seconds)[0]
        if not isinstance(which, Iterable):
            raise TypeError(f"await_responses takes an id, ids or a timedelta, not a {type(which).__name__}")
        return board.take([index(item) for item in which], seconds)

    def get_num_responses_ready(self, id: int | None = None) -> int:  # noqa: A002 - the interface's name
        """How many responses wait to be taken, of one request or of all."""
        return self._assembly.board.count(None if id is None else index(id))

    def cancel_request(self, id: int) -> None:  # noqa: A002 - the interface's name
        """End a request; its last response has the finish reason CANCELLED. Ids that have ended are ignored."""
        self._check_running()
        self._assembly.inbox.cancel(index(id))

    def hold_request(self, id: int, *, held: bool) -> None:  # noqa: A002 - as in cancel_request
        """Let a request whose responses no one takes give way, or go on. Ids that have ended are ignored.

        A held request runs on until others wait for its place. Then it is paused, however long that takes, and gives
        everything back but its tokens; its text is the same in the end. Its time limit counts all the while.
        """
        self._check_running()
        self._assembly.inbox.hold(index(id), held)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """Statistics of the iterations since the last call, at most ``iter_stats_max_iterations``."""
        self._check_running()
        return self._assembly.stats.take_iterations()

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """Statistics of requests by iteration since the last call, at most ``request_stats_max_iterations``."""
        self._check_running()
        return self._assembly.stats.take_requests()

    def get_latest_debug_tensors(self) -> list[DebugTensorsPerIteration]:
        """The tensors that ``ExecutorConfig.debug_config`` names, for the iterations since the last call.

        For each iteration ``request_ids`` [segments] (a segment is what one sequence computes), and on request
        ``input_ids`` [tokens], ``sequence_length`` [segments], ``logits`` [rows, vocabulary], tensors of the graph
        [tokens, ...].
        """
        self._check_running()
        return self._assembly.debug.take()

    def renew_adapters(self, folder: str | Path) -> Callable[[], None]:
        """Read the LoRA adapters of a folder like ``PeftCacheConfig.lora_prefetch_dir`` while requests go on.

        What is returned puts them in the place of those that were read beforehand; requests that run keep theirs. It
        does not raise. Raises ``CheckError`` for an adapter that makes no sense, ``UnsupportedFeatureError`` where the
        model takes none.
        """
        if self._assembly.adapters is None:
            raise UnsupportedFeatureError("LoRA", "the model takes no adapters; build it with lora=True")
        return self._assembly.adapters.renew(Path(folder))

    @property
    def most_adapters(self) -> int:
        """How many requests run at once, each with an adapter of its own; 0 where the model takes none."""
        return 0 if self._assembly.adapters is None else self._assembly.stats.max_requests

    def running_client_ids(self) -> set[int | None]:
        """The ``client_id`` of each request that runs now; those that wait for their turn are not among them."""
        return {task.request.client_id for task in tuple(self._assembly.scheduler.running)}

    def can_enqueue_requests(self) -> bool:
        """Whether requests are accepted; false after shutdown."""
        return not (self._stopped or self._assembly.board.stopped)

    def get_kv_cache_event_manager(self) -> KVCacheEventManager | None:
        """KV-cache events; None if ``KvCacheConfig.event_buffer_max_size`` is 0."""
        return self._assembly.events

    def shutdown(self) -> None:
        """End the step that runs; unfinished requests get no answer. May be called twice.

        A step that does not end within five seconds is left behind: it keeps its thread and the model.
        """
        with self._lock:
            self._stopped = True
        self._assembly.engine.stop()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _check_running(self) -> None:
        if self._stopped:
            raise ExecutorStoppedError("Shutdown called")


def _checked(config: ExecutorConfig) -> EngineConfig:
    own = EngineConfig.of(config)
    check_config(own)
    return own


def _positional(args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """A constructor's arguments in their order; raises ``TypeError`` for names that belong to none."""
    if not named:
        return args
    for names in _CONSTRUCTORS:
        rest = names[len(args) :]
        if named.keys() <= set(rest) <= named.keys() | {"managed_weights"}:
            return (*args, *(named[name] for name in rest if name in named))
    raise TypeError(f"Executor has no constructor for {len(args)} positional arguments and {sorted(named)}")


def _refuse_other_constructors(args: Sequence[Any]) -> None:
    """The constructors for encoder-decoder models belong to runners that are not here."""
    if len(args) in (4, 6):
        raise UnsupportedFeatureError("Executor for an encoder-decoder model", "runners serve decoder-only models")
    raise TypeError(f"Executor takes a model path, a ModelType and an ExecutorConfig; {len(args)} arguments were given")


def _awaited(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, timedelta | None]:
    """(an id, ids, or None; the timeout) from the ways in which await_responses may be called."""
    unknown = set(named) - {"id", "ids", "timeout"}
    if unknown or len(args) > 2 or ("id" in named and "ids" in named):
        raise TypeError(f"await_responses takes an id or ids and a timeout, not {list(args)} and {sorted(named)}")
    rest = list(args)
    which = named.get("id", named.get("ids"))
    if rest and not isinstance(rest[0], timedelta) and rest[0] is not None:
        which = rest.pop(0)
    elif len(rest) == 2:
        rest.pop(0)
    timeout = rest[0] if rest else named.get("timeout")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"await_responses: the timeout must be a timedelta, not {type(timeout).__name__}")
    return which, timeout
