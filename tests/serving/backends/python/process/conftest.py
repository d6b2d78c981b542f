"""What a test of processes and shared memory must not leave open, and a core with a model that can be held."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import uvloop

from repoagent.serving.backends.python.process import exchange
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.serving import core_kit
from tests.waiting import until

T = TypeVar("T")
_PATIENCE = 120


@pytest.fixture(scope="module", autouse=True)
def what_others_left_is_no_garbage() -> None:
    """Each look at what is held collects garbage; what earlier modules imported and keep need not be gone through."""
    gc.collect()
    gc.freeze()


def _held() -> tuple[int, int]:
    """Open descriptors, and threads that watch a process."""
    gc.collect()
    watching = sum(thread.name.endswith("-process") for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), watching


@contextmanager
def _nothing_left() -> Iterator[None]:
    before = _held()
    yield
    # What is ending may end, and threads that other tests left (of S3's or gRPC's libraries) open and close
    # descriptors of their own at any time.
    until(
        lambda: all(now <= then for now, then in zip(_held(), before, strict=True)),
        lambda: f"descriptors and threads: {before} before, {_held()} now",
    )


@pytest.fixture
def nothing_left() -> Callable[[], AbstractContextManager[None]]:
    """A ``with`` block that must leave no more descriptors open, and threads running, than it found."""
    return _nothing_left


# Does what the numbers that it gets say.
MODEL = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 1
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        what = x.as_numpy()[0]
        if what == 1:
            with open({pipe!r}) as pipe:
                pipe.read()
        if what == 2:
            os.abort()
        if what == 3:
            raise RuntimeError("no luck")
        if what == 4:
            time.sleep(0.004)
        y = x.as_numpy()
        if what == 5:
            y = np.concatenate([y, y])
        if what == 6:
            pb_utils.Logger.log_info("hello")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)], parameters={{"pid": os.getpid()}})]
    def finalize(self):
        open({finalized!r}, "w").close()
"""
CONFIG = """
backend: "python" {more} parameters {{ key: "EXECUTION" value {{ string_value: "process" }} }}
input {{ name: "x" data_type: TYPE_FP32 dims: [-1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1] }}
"""


class Answers(core_kit.Answers):
    """With the number that the only response has."""

    @property
    def value(self) -> float:
        if self.response.error is not None:
            raise self.response.error
        return float(self.response.outputs["y"].array[0])


class Serving:
    """A core with the model "m", known to be quick, whose instances the test can hold."""

    def __init__(self, core: ServingCore, pipe: Path, finalized: Path) -> None:
        self.core = core
        self.pipe = pipe
        self.finalized = finalized
        (self.scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
        self.instances: list[Any] = list(self.scheduler.instances)
        for one in self.instances:
            while one.ahead < 8:  # It was interrupted now and then.
                one.call(self.request(0.0))

    def request(self, value: float, sender: Any = DISCARD, **fields: Any) -> InferRequest:
        return InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))}, **fields), sender)

    def submit(self, value: float, **fields: Any) -> Any:
        answers = Answers()
        request = self.request(value, answers, **fields)
        self.core.submit(request)
        return request, answers

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is submitted meanwhile waits, and is handed over together afterwards."""
        with ExitStack() as stack:
            for _ in self.instances:
                instance = self.scheduler._pool.take(60)
                assert instance is not None
                stack.callback(self.scheduler._pool.give, instance)
            yield

    def together(self, *values: float, **fields: Any) -> tuple[list[InferRequest], list[Answers]]:
        with self.held():
            pairs = [self.submit(value, **fields) for value in values]
        return [request for request, _ in pairs], [answers for _, answers in pairs]

    def messages(self) -> int:
        """How many messages the first process has been sent."""
        sent: int = self.instances[0]._inner.supervisor.child.work.sent
        return sent

    def let_go(self) -> None:
        """Let the model go on that waits."""
        self.pipe.open("w").close()

    def statistics(self) -> dict[str, Any]:
        entry: dict[str, Any] = self.core.statistics("m", "1")["model_stats"][0]
        return entry


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    pipe, finalized = tmp_path / "pipe", tmp_path / "finalized"
    os.mkfifo(pipe)
    gc.collect()
    with ExitStack() as stack:

        def start(more: str = "", **settings: str) -> Serving:
            directory = tmp_path / "models" / "m" / "1"
            directory.mkdir(parents=True)
            (directory / "model.py").write_text(MODEL.format(pipe=str(pipe), finalized=str(finalized)))
            (directory.parent / "config.pbtxt").write_text(CONFIG.format(more=more))
            options = CoreOptions(
                repositories=(str(tmp_path / "models"),),
                control_mode=ControlMode.EXPLICIT,
                repoagent_directory=None,
                backend_config={"python": {key.replace("_", "-"): value for key, value in settings.items()}},
            )
            core = stack.enter_context(ServingCore(options))
            core.load("m")
            return Serving(core, pipe, finalized)

        yield start


@pytest.fixture
def serve_steadily(serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Serving]:
    """As ``serve``, but no execution counts as slow, and no silence as long, however busy this machine is."""

    def start(more: str = "", **settings: str) -> Serving:
        monkeypatch.setattr(exchange, "_PATIENCE_SECONDS", 3600)
        serving = serve(more, **settings)
        for one in serving.instances:
            monkeypatch.setattr(one._inner._requests_ahead, "note", lambda _: None)
        return serving

    return start


class LoopThread:
    """An event loop on a thread of its own, as the front ends have them."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        begun = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(begun,), name="loop", daemon=True)
        self.thread.start()
        assert begun.wait(_PATIENCE), "the loop has no reader"

    def _run(self, begun: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve(begun))

    async def _serve(self, begun: threading.Event) -> None:
        with LoopReader(self.loop) as self.reader:
            begun.set()
            await self._stop.wait()

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on the loop's thread."""
        result: Future[T] = Future()
        self.loop.call_soon_threadsafe(lambda: result.set_result(function()))
        return result.result(60)

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self.thread.join(60)


@pytest.fixture
def new_loop() -> Iterator[Callable[[], LoopThread]]:
    with ExitStack() as stack:

        def start() -> LoopThread:
            loop = LoopThread()
            stack.callback(loop.stop)
            return loop

        yield start
