import asyncio
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
from repoagent_server.handlers.inference import Answer, Inference, Mailbox
from repoagent_server.handlers.requested_outputs import RequestedOutputs

from repoagent.server import Server
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
    return Inference(core, Mailbox(asyncio.get_running_loop()), forwarding=HeaderForwarding(pattern))


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
