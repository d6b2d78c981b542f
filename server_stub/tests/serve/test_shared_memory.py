"""Shared memory between this process and a real server."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROCESSES

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects
    from server_stub.tests.serve.conftest import World


def _ask(module: Any, client: Any) -> None:
    given = module.InferInput("X", [2, 4], "FP32")
    given.set_shared_memory("both", 32)
    wanted = module.InferRequestedOutput("Y")
    wanted.set_shared_memory("both", 32, 32)
    client.infer("plain", [given], outputs=[wanted])


@pytest.mark.skipif(bool(PROCESSES), reason="it looks into the memory of the one process")
def test_a_client_of_another_process_shares_its_memory_and_keeps_it(world: "World", objects: "Objects") -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    handle = objects.make("both", 64, values.tobytes())
    server = world.serve("--load-model=plain", "--allow-client-shm")
    grpc = json.loads((world.root / "ready-0.json").read_text())["grpc"]
    with (
        server.triton() as over_http,
        grpc_client.InferenceServerClient(f"{grpc['address']}:{grpc['port']}") as over_grpc,
    ):
        over_http.register_system_shared_memory("both", objects.key("both"), 64)
        for module, client in ((http_client, over_http), (grpc_client, over_grpc)):
            _ask(module, client)
            assert np.array_equal(objects.read(handle, np.float32, [2, 4], 32), -values)
        path = Path(f"/dev/shm{objects.key('both')}")
        maps = Path(f"/proc/{server.process.pid}/maps")
        assert str(path) in maps.read_text()
        os.truncate(path, 0)
        with pytest.raises(InferenceServerException, match="region 'both' has shrunk"):
            _ask(grpc_client, over_grpc)
        over_http.unregister_system_shared_memory()
        server.until(lambda: str(path) not in maps.read_text(), "the end of the mapping")
        os.truncate(path, 64)
        over_grpc.register_system_shared_memory("both", objects.key("both"), 64)
        _ask(http_client, over_http)
    assert server.stop() == 0
    assert path.exists()
