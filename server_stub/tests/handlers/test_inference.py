import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import helper
from repoagent_server import KServeGrpc, KServeHttp
from repoagent_server.handlers import requested_outputs
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.inference import Answer, Inference, Mailbox, Served, check_version
from repoagent_server.handlers.requested_outputs import RequestedOutputs

from repoagent.errors import InvalidArgumentError
from repoagent.server import Server
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferResponse
from tests.onnx_models import floats, make_model, save_model

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects

_HEADERS = [(b"X-User", b"ada"), (b"Host", b"localhost")]


class _Answer(Answer):
    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(mailbox)
        self.came: list[tuple[InferResponse | None, bool]] = []

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        self.came.append((response, final))


def _inference(core: Any, pattern: str = "") -> Inference:
    return Inference(Served(core), Mailbox(asyncio.get_running_loop()), forwarding=HeaderForwarding(pattern))


async def test_headers_that_mean_nothing_are_not_even_read(core: Any) -> None:
    def headers() -> Iterable[tuple[bytes, bytes]]:
        raise AssertionError("nobody asked")

    context = _inference(core).context(headers)
    assert (dict(context.parameters), context.trace_context) == ({}, None)


async def test_chosen_headers_become_parameters_of_every_request_of_a_call(core: Any) -> None:
    inference = _inference(core, "x-.*")
    context = inference.context(lambda: _HEADERS)
    for _ in range(2):
        asked = Asked("ident", {}, parameters={"own": 1})
        request = inference.prepare(asked, _Answer(inference.mailbox), context)
        assert request.asked.parameters == {"own": 1, "X-User": "ada"}


async def test_no_headers_at_all_are_fine(core: Any) -> None:
    """gRPC has None for a call without metadata."""
    missing: Any = None
    assert _inference(core, "x-.*").context(lambda: missing).parameters == {}


async def test_a_refusal_by_the_core_is_an_answer(core: Any) -> None:
    inference = _inference(core)
    answer = _Answer(inference.mailbox)
    request = inference.prepare(Asked("absent", {}), answer, requested=RequestedOutputs(), refuses_decoupled="why")
    inference.core.submit(request)
    ((response, final),) = answer.came
    assert response is not None
    assert response.error is not None
    assert "absent" in response.error.message
    assert final
    assert request.refuses_decoupled == "why"


# ONNX Runtime writes outputs into the client's memory itself.

_WIDTH: Final = 1 << 15
_CACHED: Final = "response_cache { enable: true }"


def _write(folder: Path, config: str) -> None:
    shape = ["batch", _WIDTH]
    model = make_model([helper.make_node("Neg", ["X"], ["Y"])], floats("X", shape=shape), floats("Y", shape=shape))
    save_model(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(f'backend: "onnxruntime" max_batch_size: 8 {config}')


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Any]]:
    """A client of each module, for ``neg`` and ``cached``."""
    models = tmp_path_factory.mktemp("models")
    _write(models / "neg", "")
    _write(models / "cached", _CACHED)
    with ExitStack() as stack:
        server = stack.enter_context(Server(model_repository=str(models), cache_config={"local": {"size": 1 << 20}}))
        clients = {}
        for module, front in ((http_client, KServeHttp), (grpc_client, KServeGrpc)):
            running = stack.enter_context(front(server, front.Options(port=0, allow_client_shm=True)))
            address = "{}:{}".format(*running.address)
            clients[module] = stack.enter_context(module.InferenceServerClient(address))
        yield clients


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
@pytest.mark.parametrize(("model", "copies"), [("neg", 0), ("cached", 1)])
def test_an_output_is_made_in_the_clients_memory_unless_it_is_remembered(
    clients: dict[Any, Any], objects: "Objects", monkeypatch: pytest.MonkeyPatch, module: Any, model: str, copies: int
) -> None:
    client = clients[module]
    size = 2 * _WIDTH * 4
    values = np.arange(2 * _WIDTH, dtype=np.float32).reshape(2, -1)
    objects.make("in", size, values.tobytes())
    out = objects.make("out", size)
    client.unregister_system_shared_memory()
    for name in ("in", "out"):
        client.register_system_shared_memory(name, objects.key(name), size)
    copied: list[Any] = []

    def copy(place: Any, array: Any) -> None:
        copied.append(place)
        np.copyto(place, array)

    monkeypatch.setattr(requested_outputs, "_copy", copy)
    given = module.InferInput("X", [2, _WIDTH], "FP32")
    given.set_shared_memory("in", size)
    wanted = module.InferRequestedOutput("Y")
    wanted.set_shared_memory("out", size)
    client.infer(model, [given], outputs=[wanted])
    assert np.array_equal(objects.read(out, np.float32, [2, _WIDTH]), -values)
    assert len(copied) == copies


# A version as clients write it.


@pytest.mark.parametrize("version", ["", "1", "007", "0" * 5000 + "1", str(2**63 - 1)])
def test_a_version_is_a_number(version: str) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize("version", ["x", "1.0", "٣", " 1", str(2**63), "1" * 5000])
def test_anything_else_is_refused(version: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(details: stol\)"):
        check_version(version)


# Responses from other threads to an event loop.


class _Receiver(Answer):
    def __init__(self, wanted: int) -> None:
        self.got: list[tuple[InferResponse | None, bool, int]] = []
        self.all = asyncio.Event()
        self._wanted = wanted

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        self.got.append((response, final, threading.get_ident()))
        if len(self.got) == self._wanted:
            self.all.set()


class _CountingLoop:
    """Counts how often a loop is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wakes = 0

    def call_soon_threadsafe(self, *call: Any) -> Any:
        self.wakes += 1
        return self._loop.call_soon_threadsafe(*call)


async def test_a_batch_of_responses_wakes_the_loop_once_and_keeps_its_order() -> None:
    loop: Any = _CountingLoop(asyncio.get_running_loop())
    mailbox = Mailbox(loop)
    receiver = _Receiver(100)
    responses = [InferResponse("m", str(number)) for number in range(100)]

    def work() -> None:
        for response in responses:
            mailbox.post(receiver, response, response is responses[-1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # the loop has no turn in between
    await asyncio.wait_for(receiver.all.wait(), 60)
    assert loop.wakes == 1
    assert [response for response, _, _ in receiver.got] == responses
    assert {ident for _, _, ident in receiver.got} == {threading.get_ident()}


async def test_a_response_of_the_loop_does_not_overtake_one_of_a_thread() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(2)
    responses = [InferResponse("m", str(number)) for number in range(3)]
    thread = threading.Thread(target=mailbox.post, args=(receiver, responses[0], True))
    thread.start()
    thread.join()  # the loop has no turn in between
    mailbox.post(receiver, responses[1], True)
    assert receiver.got == []
    await asyncio.wait_for(receiver.all.wait(), 60)
    mailbox.post(receiver, responses[2], True)  # Nothing waits any more: it is delivered at once.
    assert [response for response, _, _ in receiver.got] == responses


async def test_nothing_is_lost_when_many_threads_post_while_the_loop_drains() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(8 * 2000)

    def work() -> None:
        for _ in range(2000):
            mailbox.post(receiver, None, False)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(receiver.all.wait(), 60)
    for thread in threads:
        thread.join()


async def test_on_the_loops_own_thread_it_is_delivered_at_once() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(1)
    mailbox.post(receiver, None, True)
    assert len(receiver.got) == 1


async def test_one_that_cannot_be_delivered_does_not_hold_the_others_up() -> None:
    class Broken(Answer):
        def deliver(self, response: InferResponse | None, final: bool) -> None:
            raise ZeroDivisionError

    mailbox, receiver = Mailbox(asyncio.get_running_loop()), _Receiver(1)

    def post() -> None:
        mailbox.post(Broken(mailbox), None, True)
        mailbox.post(receiver, None, True)

    thread = threading.Thread(target=post)
    thread.start()
    thread.join()
    assert not receiver.got
    await asyncio.sleep(0)
    assert receiver.got == [(None, True, threading.get_ident())]


async def test_another_loop_is_not_held_up_but_learns_that_it_reads_too_fast() -> None:
    mailbox, receiver = Mailbox(asyncio.get_running_loop()), _Receiver(2_000)
    overran: list[bool] = []

    async def read() -> None:
        with LoopReader(asyncio.get_running_loop()) as reader:
            for _ in range(2_000):
                mailbox.post(receiver, None, False)
            overran.append(reader.overran)

    thread = threading.Thread(target=lambda: asyncio.run(read()))
    thread.start()
    thread.join()  # This loop runs nothing meanwhile.
    await receiver.all.wait()
    assert overran == [True]


async def test_a_sender_that_is_faster_than_the_loop_is_held_up_and_the_loop_still_has_turns() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    most = turns = 0
    receiver = _Receiver(20_000)

    def work() -> None:
        nonlocal most
        for _ in range(20_000):
            mailbox.post(receiver, None, False)
            most = max(most, len(mailbox._waiting))

    thread = threading.Thread(target=work)
    thread.start()
    while not receiver.all.is_set():
        await asyncio.sleep(0)
        turns += 1
    thread.join()
    assert len(receiver.got) == 20_000
    assert most <= 1024 + 1
    assert turns > 10
