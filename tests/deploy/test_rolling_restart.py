"""A rolling restart behind Envoy, which hears five seconds late that the old server goes, and sends to it meanwhile.
Without retries: a request that fails is lost."""

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PATIENCE, Server, World, world

pytestmark = pytest.mark.slow

__all__ = ["world"]

LATE: Final = 5
"""Seconds until Envoy hears that the old server goes."""
DRAIN: Final = LATE + 10
"""Time enough for Envoy to hear of it on a slow machine, too."""
PAUSE: Final = 0.01
CLUSTERS: Final = ("http", "grpc")
VALUES: Final = np.arange(4, dtype=np.float32).reshape(1, 4)

_HTTP2: Final = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


def _routes() -> list[dict[str, Any]]:
    """gRPC and the rest. Nothing is tried again."""
    rpc = {"match": {"prefix": "/inference."}, "route": {"cluster": "grpc", "timeout": "0s"}}
    return [rpc, {"match": {"prefix": "/"}, "route": {"cluster": "http", "timeout": "0s"}}]


def _manager() -> dict[str, Any]:
    kind = "type.googleapis.com/envoy.extensions.filters"
    router = {"@type": f"{kind}.http.router.v3.Router"}
    return {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "api",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _routes()}]},
    }


def _bootstrap(folder: Path) -> dict[str, Any]:
    """A port for both protocols, and the endpoints of both from files that Envoy watches."""

    def cluster(name: str) -> dict[str, Any]:
        source = {"resource_api_version": "V3", "path_config_source": {"path": str(folder / f"{name}.json")}}
        made = {"name": name, "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": {"eds_config": source}}
        return {**made, "typed_extension_protocol_options": _HTTP2} if name == "grpc" else made

    local = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager()}]
    listener = {"name": "api", "address": local, "filter_chains": [{"filters": filters}]}
    return {
        "node": {"id": "test", "cluster": "test"},
        "admin": {"address": local},
        "static_resources": {"listeners": [listener], "clusters": [cluster(name) for name in CLUSTERS]},
    }


class Proxy:
    """Envoy, and the servers that it knows of."""

    def __init__(self, envoy: str, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._admin = folder / "admin"
        self.send_to()
        (folder / "envoy.json").write_text(json.dumps(_bootstrap(folder)))
        command = [envoy, "-c", str(folder / "envoy.json"), "--admin-address-path", str(self._admin)]
        command += ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, stderr=log)
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)

    def send_to(self, *servers: Server) -> None:
        """Tell Envoy of these servers. It looks at files that are moved into their place."""
        kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
        for name in CLUSTERS:
            addresses = [{"address": "127.0.0.1", "port_value": server.port(name)} for server in servers]
            endpoints = [{"endpoint": {"address": {"socket_address": one}}} for one in addresses]
            assignment = {"@type": kind, "cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
            beside = self._folder / f"{name}.new"
            beside.write_text(json.dumps({"resources": [assignment]}))
            beside.rename(self._folder / f"{name}.json")

    def until_it_knows(self, count: int) -> None:
        """Return once it sends to so many servers."""
        wanted = [f"cluster.{name}.membership_total: {count}" for name in CLUSTERS]
        self._until(lambda: all(line in self._asked("stats?filter=membership_total").text for line in wanted))

    def address(self) -> str:
        """Where clients reach it."""
        (listener,) = self._asked("listeners?format=json").json()["listener_statuses"]
        return f"127.0.0.1:{listener['local_address']['socket_address']['port_value']}"

    def _asked(self, path: str) -> httpx.Response:
        self._until(lambda: self._admin.exists() and self._admin.read_text() != "")
        return httpx.get(f"http://{self._admin.read_text()}/{path}", timeout=PATIENCE)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Envoy has nothing to wait for: it is asked."""
        end = time.monotonic() + PATIENCE
        while not condition():
            log = (self._folder / "log").read_text()[-2000:]
            assert self._process.poll() is None, log
            assert time.monotonic() < end, log
            time.sleep(0.02)


@pytest.fixture
def proxy(tool: Callable[[str], str], tmp_path: Path) -> Iterator[Proxy]:
    with ExitStack() as stack:
        yield Proxy(tool("envoy"), tmp_path, stack)


class Load:
    """Clients of both protocols that ask through the proxy, each a hundred times a second at most."""

    def __init__(self, address: str) -> None:
        self.answered: Counter[str] = Counter()
        self.lost: SimpleQueue[str] = SimpleQueue()
        self._over = threading.Event()
        self._begun = threading.Semaphore(0)
        kinds: list[tuple[str, Any]] = [("http", triton_http), ("grpc", triton_grpc)]
        self._threads = [threading.Thread(target=self._ask, args=(*kind, address)) for kind in kinds * 2]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            assert self._begun.acquire(timeout=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str, kind: Any, address: str) -> None:
        with kind.InferenceServerClient(address) as client:
            tensor = kind.InferInput("X", [1, 4], "FP32").set_data_from_numpy(VALUES)
            while not self._over.wait(PAUSE):
                try:
                    right = np.array_equal(client.infer("plain", [tensor]).as_numpy("Y"), -VALUES)
                except InferenceServerException as error:
                    self.lost.put(f"{name}: {error}")
                except Exception as error:
                    self.lost.put(f"{name}: {error!r}")
                else:
                    self.answered[name] += right
                    self._begun.release()


def _executed(server: Server) -> int:
    (found,) = server.http.get("/v2/models/plain/stats").json()["model_stats"]
    return int(found["inference_stats"]["success"]["count"])


def _servers(world: World, *flags: str) -> list[Server]:
    always = ("--model-control-mode=explicit", "--load-model=plain", "--allow-grpc=true")
    return [server.wait_ready() for server in [world.start(*always, *flags) for _ in range(2)]]


def test_a_rolling_restart_behind_a_proxy_that_hears_of_it_late_loses_no_request(world: World, proxy: Proxy) -> None:
    old, new = _servers(world, f"--drain-delay={DRAIN}")
    proxy.send_to(old)
    proxy.until_it_knows(1)
    with Load(proxy.address()) as load:
        proxy.send_to(old, new)
        proxy.until_it_knows(2)
        before = _executed(old)
        old.process.send_signal(signal.SIGTERM)
        time.sleep(LATE)
        late = _executed(old) - before
        proxy.send_to(new)
        assert old.ended() == 0, old.log
    assert load.lost.empty(), [load.lost.get() for _ in range(load.lost.qsize())][:5]
    assert late > 0, "the proxy must have gone on sending"
    assert min(load.answered[kind] for kind in CLUSTERS) > 0
    assert _executed(new) > 0


def test_without_the_delay_the_same_proxy_loses_requests(world: World, proxy: Proxy) -> None:
    """Else the test above would pass whatever the server does."""
    old, new = _servers(world)
    proxy.send_to(old, new)
    proxy.until_it_knows(2)
    with Load(proxy.address()) as load:
        old.process.send_signal(signal.SIGTERM)
        assert load.lost.get(timeout=PATIENCE)
    assert old.ended() == 0, old.log
