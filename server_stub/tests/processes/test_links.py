"""The socket between two workers, of which one may be hostile."""

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from repoagent_server.access.access import Access, credential_of
from repoagent_server.access.clients import Client, Grant
from repoagent_server.access.credentials import Given
from repoagent_server.access.rights import Right
from repoagent_server.access.rules import Rules
from repoagent_server.processes.link import Rights
from repoagent_server.processes.links import Links, passing_version
from repoagent_server.program import worker as program
from repoagent_server.shared.connections import InFlight

from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import NO_LABELS, Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.served_model import ServedModel

CONFIG = ModelConfig(name="m")
CONFIG.input.add(name="X", data_type=DataType.FP32, dims=[-1])
CONFIG.output.add(name="Y", data_type=DataType.FP32, dims=[-1])
CONFIG.model_transaction_policy.decoupled = True
HANDED = 7


class Loop:
    """An event loop of a front end, on a thread of its own."""

    def __init__(self, name: str) -> None:
        self.in_flight = InFlight()
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=name)
        self._thread.start()

    async def _run(self) -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        with LoopReader(loop):
            self._started.set_result((loop, end))
            await end.wait()

    def have_joined(self, links: Links) -> None:
        joined = threading.Event()

        def join() -> None:
            links.join(self.in_flight)
            joined.set()

        self._started.result()[0].call_soon_threadsafe(join)
        joined.wait()

    def end(self) -> None:
        if self._thread.is_alive():
            loop, end = self._started.result()
            loop.call_soon_threadsafe(end.set)
            self._thread.join()


@pytest.fixture(params=["a thread reads", "an event loop reads"])
def reads(request: pytest.FixtureRequest) -> Iterator[Loop | None]:
    loop = Loop("loop") if "loop" in request.param else None
    Worker.loop = loop
    yield loop
    Worker.loop = None
    if loop is not None:
        loop.end()


pytestmark = pytest.mark.usefixtures("reads")


class Home(Scheduler):
    """Keeps the requests, for a test to answer."""

    def __init__(self) -> None:
        super().__init__("m")
        self.requests: list[InferRequest] = []
        self.threads: list[str] = []
        self.came = threading.Semaphore(0)
        self.cancelled = threading.Event()

    def submit(self, request: InferRequest) -> None:
        request.on_cancel = self.cancelled.set
        self.requests.append(request)
        self.threads.append(threading.current_thread().name)
        self.came.release()

    def take(self) -> InferRequest:
        assert self.came.acquire(timeout=30)
        return self.requests[-1]

    def close(self) -> None:
        """Nothing is open."""


class Sender:
    def __init__(self) -> None:
        self.answers: list[InferResponse | None] = []
        self.over = threading.Event()

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.answers.append(response)
        if final:
            self.over.set()


class Worker:
    """The links of one worker; ``keeper`` is the end that brings it sockets."""

    loop: ClassVar[Loop | None] = None

    def __init__(self, served: ServedModel | None = None, rights: Rights | None = None) -> None:
        self.keeper, news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.broken: list[int] = []
        self.asked = threading.Event()
        find = {HANDED: served}.get
        self.links = Links(news, find, self._note, DEFAULT_LIMITS, rights or Rights())
        self.links.start()
        if self.loop is not None:
            self.loop.have_joined(self.links)

    def _note(self, worker: int) -> None:
        self.broken.append(worker)
        self.asked.set()

    def meet(self, worker: int, end: socket.socket) -> None:
        socket.send_fds(self.keeper, [str(worker).encode()], [end.fileno()])
        waited = threading.Event()
        while self.links.get(worker) is None:
            waited.wait(0.001)


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def pair(home: Home) -> Iterator[tuple[Worker, Worker]]:
    """Worker 0 passes on, worker 1 has the model."""
    served = ServedModel(VersionContext("m", 1, CONFIG), backend_model=None, scheduler=home)
    workers = Worker(), Worker(served)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    workers[0].meet(1, ends[0])
    workers[1].meet(0, ends[1])
    for end in ends:
        end.close()
    yield workers
    for worker in workers:
        worker.keeper.close()


def passing(worker: Worker, handed: Any = HANDED) -> ServedModel:
    return passing_version("m", 1, CONFIG, NO_LABELS, worker.links, 1, handed)


def request(sender: Sender, size: int = 3, **fields: Any) -> InferRequest:
    return InferRequest(Asked("m", {"X": Tensor.of(np.arange(size, dtype=np.float32))}, **fields), sender)


def test_a_request_keeps_what_the_client_asked_and_gets_every_answer(home: Home, pair: tuple[Worker, Worker]) -> None:
    for size in (3, 1 << 20):  # In the packet, and in shared memory.
        sender = Sender()
        fields = {"correlation_id": "one", "sequence_start": True, "priority": 3, "timeout_us": 77}
        passing(pair[0]).submit(request(sender, size, id="x", parameters={"a": 1}, **fields))
        there = home.take()
        asked = there.asked
        assert (asked.id, asked.correlation_id, asked.priority, asked.timeout_us) == ("x", "one", 3, 77)
        assert (asked.parameters, asked.sequence_start, asked.sequence_end) == ({"a": 1}, True, False)
        for factor in (2, 3):
            outputs = {"Y": Tensor.of(there.inputs["X"].array * np.float32(factor))}
            there.send(InferResponse("m", "1", "x", outputs, {"factor": factor}), False)
        there.send(None, True)
        assert sender.over.wait(30)
        *answers, last = sender.answers
        assert last is None
        for factor, answer in zip((2, 3), answers, strict=True):
            assert answer is not None
            assert (answer.id, answer.parameters) == ("x", {"factor": factor})
            assert np.array_equal(answer.outputs["Y"].array, np.arange(size, dtype=np.float32) * factor)


def _comes_by(home: Home, worker: Worker, size: int = 3) -> str:
    """The thread on which a request reaches the model."""
    sender = Sender()
    passing(worker).submit(request(sender, size))
    home.take().send(None, True)
    assert sender.over.wait(30)
    return home.threads[-1]


def test_a_loop_reads_what_is_brief_for_as_long_as_it_runs(
    home: Home, pair: tuple[Worker, Worker], reads: Loop | None
) -> None:
    while reads is not None and _comes_by(home, pair[0]) != "loop":
        pass  # Until the socket is lent.
    assert _comes_by(home, pair[0], 4 << 20) == "repoagent-links"
    if reads is not None:
        while _comes_by(home, pair[0]) != "loop":
            pass
        reads.end()
    assert _comes_by(home, pair[0]) == "repoagent-links"


def test_the_loop_with_most_requests_reads(home: Home, pair: tuple[Worker, Worker], reads: Loop | None) -> None:
    other = Loop("other")
    other.have_joined(pair[1].links)
    other.in_flight.begun += 1 << 20
    while _comes_by(home, pair[0]) != "other":
        pass
    other.end()
    while _comes_by(home, pair[0]) == "other":
        pass


def test_an_error_keeps_its_kind(home: Home, pair: tuple[Worker, Worker]) -> None:
    sender = Sender()
    passing(pair[0]).submit(request(sender))
    home.take().send(InferResponse("m", "1", error=InvalidArgumentError("no")), True)
    assert sender.over.wait(30)
    assert isinstance(_error(sender), InvalidArgumentError)


def test_a_cancellation_reaches_the_home(home: Home, pair: tuple[Worker, Worker]) -> None:
    sender = Sender()
    made = request(sender)
    passing(pair[0]).submit(made)
    home.take()
    made.cancel()
    assert home.cancelled.wait(30)
    home.requests[-1].send(None, True)
    assert sender.over.wait(30)


def test_what_is_not_read_is_held_at_the_home(home: Home, pair: tuple[Worker, Worker]) -> None:
    sender, heard = Sender(), SimpleQueue[bool]()
    made = request(sender)
    made.fall_behind(True)
    passing(pair[0]).submit(made)
    there = home.take()
    there.on_behind = heard.put
    if there.behind:  # It may have come before.
        heard.put(True)
    assert heard.get(timeout=30)
    made.fall_behind(False)
    while heard.get(timeout=30):
        pass
    assert not there.behind
    there.send(None, True)
    assert sender.over.wait(30)
    assert made.on_behind is None


def test_readiness_is_that_of_the_home(pair: tuple[Worker, Worker]) -> None:
    assert passing(pair[0]).check_ready()
    assert not passing(pair[0], handed=8).check_ready()


@pytest.mark.parametrize("handed", [8, None])
def test_a_model_that_the_home_does_not_have_is_unavailable(handed: Any, pair: tuple[Worker, Worker]) -> None:
    sender = Sender()
    passing(pair[0], handed).submit(request(sender))
    assert sender.over.wait(30)
    assert isinstance(_error(sender), UnavailableError)


def test_a_home_that_has_gone_fails_what_it_had_and_what_comes() -> None:
    worker, (ours, theirs) = Worker(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(1, ours)
    ours.close()
    sender, later = Sender(), Sender()
    passing(worker).submit(request(sender))
    theirs.close()
    assert sender.over.wait(30)
    passing(worker).submit(request(later))
    assert later.over.wait(30)
    assert {type(_error(one)) for one in (sender, later)} == {UnavailableError}
    assert not worker.asked.is_set()
    worker.keeper.close()


@pytest.mark.parametrize("kind", [1, 8, 9, 10, 11])
@pytest.mark.parametrize("body", [None, [], [1, 2], [[], "x", {}], {"a": 1}])
def test_a_worker_that_lies_ends_its_own_connection(home: Home, kind: int, body: Any) -> None:
    served = ServedModel(VersionContext("m", 1, CONFIG), backend_model=None, scheduler=home)
    worker, (ours, theirs) = Worker(served), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(4, ours)
    ours.close()
    text = json.dumps([body, None, [], [], []]).encode()
    theirs.send(bytes([kind, 0]) + len(text).to_bytes(4, "little") + text)
    assert worker.asked.wait(30)
    assert worker.broken == [4]
    other, ends = Worker(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.meet(1, ends[0])
    worker.meet(0, ends[1])
    assert passing(other).check_ready()
    for one in (*ends, theirs, worker.keeper, other.keeper):
        one.close()


def tell(end: socket.socket, kind: int, body: Any) -> None:
    text = json.dumps([body, None, [], [], []]).encode()
    end.send(bytes([kind, 0]) + len(text).to_bytes(4, "little") + text)


@pytest.mark.parametrize(
    ("field", "value"), [(1, 7), (2, None), (3, []), (4, [1]), (4, None), (6, "high"), (6, -1), (7, 1.5), (8, [7])]
)
def test_fields_of_other_types_reach_no_scheduler(home: Home, field: int, value: Any) -> None:
    served = ServedModel(VersionContext("m", 1, CONFIG), backend_model=None, scheduler=home)
    worker, (ours, theirs) = Worker(served), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(4, ours)
    body: list[Any] = [1, "m", "", "", 0, 0, 0, 0, [], {}, [["X", DataType.FP32.value, [0], 0, 0]]]
    tell(theirs, 8, [HANDED, None, *body])
    taken = home.take()
    assert taken.asked.volatile
    body[0], body[field] = 2, value
    tell(theirs, 8, [HANDED, None, *body])
    assert b"other types" in theirs.recv(1 << 16)
    assert home.requests == [taken]
    for one in (ours, theirs, worker.keeper):
        one.close()


def _guarded(*, calling: bool) -> tuple[Access, Rights]:
    """What a worker judges by where "reader" may infer with "m", and "other" may not."""
    reader = Client("reader", [Grant(("m",), frozenset({Right.INFER}))])
    other = Client("other", [Grant(("n",), frozenset({Right.INFER})), Grant(("m",), frozenset({Right.METADATA}))])
    keys = {hashlib.sha256(client.name.encode()).digest(): client for client in (reader, other)}
    access = Access(Rules((reader, other), keys=keys))
    core = SimpleNamespace(models=SimpleNamespace(calling=calling))
    worker = cast(program.Worker, SimpleNamespace(_core=core))
    return access, Rights(credential_of, partial(program.Worker._judge, worker, access))


@pytest.mark.parametrize(
    "credential",
    [None, 7, [], "reader", ["other", []], ["x", []], ["", ["cn:reader"]], ["", [7]], [7, []], ["\ud800", []]],
)
def test_a_hostile_worker_asks_for_no_model_that_its_clients_may_not(home: Home, credential: Any) -> None:
    access, rights = _guarded(calling=False)
    denied: list[str] = []
    access.observe(lambda event: denied.append(event.route))
    served = ServedModel(VersionContext("m", 1, CONFIG), backend_model=None, scheduler=home)
    worker, (ours, theirs) = Worker(served, rights), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(4, ours)
    body = [1, "n", "", "", 0, 0, 0, 0, [], {}, [["X", DataType.FP32.value, [0], 0, 0]]]
    tell(theirs, 8, [HANDED, credential, *body])
    assert theirs.recv(1 << 16)[0] == 9
    assert denied == ["passed on by another process"]
    tell(theirs, 8, [HANDED, ["reader", []], 2, *body[1:]])
    home.take()
    assert [request.asker.client for request in home.requests if request.asker is not None] == ["reader"]
    for one in (ours, theirs, worker.keeper):
        one.close()


def test_requests_of_models_pass_where_a_model_may_call_and_clients_are_judged_still() -> None:
    access, rights = _guarded(calling=True)
    assert rights.judge(None, "m") is None
    caller = access.caller(Given(b"reader"))
    assert rights.credential(caller.asker) == ["reader", []]
    rights.judge(rights.credential(caller.asker), "m")
    with pytest.raises(RepoAgentError, match="other"):
        rights.judge(["other", []], "m")


def test_a_home_that_goes_right_after_an_answer_leaves_the_other_links_alone() -> None:
    worker, (ours, theirs) = Worker(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(1, ours)
    ours.close()
    link = worker.links.get(1)
    assert link is not None
    answered = link._questions[1] = Future()  # As while the thread that asked has not run again.
    tell(theirs, 11, [1, True, None])
    assert answered.result(30)
    theirs.close()
    others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(2, others[0])
    tell(others[1], 10, [1, "ready", 8])
    assert others[1].recv(1 << 16)
    for one in (*others, worker.keeper):
        one.close()


def test_a_worker_that_asks_for_links_without_end_gets_two() -> None:
    worker, ends = Worker(), []
    for _ in range(5):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = worker.links.get(4)
        worker.meet(4, ours)
        ours.close()
        theirs.settimeout(30)
        ends.append(theirs)
        waited = threading.Event()
        while worker.links.get(4) is before:
            waited.wait(0.001)
    for first in ends[:3]:
        assert first.recv(1) == b""
    assert not worker.asked.is_set()
    for last in ends[3:]:
        tell(last, 10, [1, "ready", 8])
        assert last.recv(1 << 16)
    for one in (*ends, worker.keeper):
        one.close()


def test_a_socket_that_could_not_be_taken_is_asked_for_again() -> None:
    worker = Worker()
    worker.keeper.send(b"3")  # Where no descriptor is left, the message comes without its own.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.meet(4, ours)
    assert worker.links.get(3) is None
    assert worker.broken == [3]
    for one in (ours, theirs, worker.keeper):
        one.close()


def _error(sender: Sender) -> RepoAgentError | None:
    (answer,) = sender.answers
    return answer.error if answer is not None else None
