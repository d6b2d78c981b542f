"""``--processes`` with TLS: the keeper reads the files, and all workers serve what it hands out. Real clients."""

import os
import signal
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import tritonclient.grpc as triton_grpc

from server_stub.tests.serve.test_keys_apart import replace_workers
from server_stub.tests.serve.test_processes import CONNECTIONS, processes
from tests.certificates import Authority, Pair

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

WAYS = ("http", "grpc", "metrics")


class Files:
    """A certificate and its key in use, in a directory that only their owner may enter."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.live = folder / "live"
        self.live.mkdir(mode=0o700)

    @property
    def flags(self) -> list[str]:
        """TLS on every port that can have it."""
        named = [f"{kind}-server-{what}={self.live / what}" for kind in ("http", "grpc") for what in ("cert", "key")]
        return [f"--{one}" for one in ("http-use-ssl", "grpc-use-ssl", "metrics-use-ssl", *named)] + [
            "--allow-metrics=true",
            "--metrics-port=0",
            "--grpc-port=0",
        ]

    def install(self, pair: Pair, *, key: Pair | None = None) -> None:
        """Put ``pair`` in the place of what is there, with the key of another one if that is given."""
        for source, name in (((key or pair).key, "key"), (pair.certificate, "cert")):
            new = self.live / "new"
            new.write_bytes(Path(source).read_bytes())
            new.chmod(0o600)
            new.replace(self.live / name)

    def names(self, server: "Server", way: str, connections: int = CONNECTIONS) -> set[str]:
        """Whose certificates new connections get."""
        context = ssl.create_default_context(cafile=self.authority.root)
        found = set()
        for _ in range(connections):
            with (
                socket.create_connection(("127.0.0.1", server.port(way)), 60) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as sock,
            ):
                presented: Any = sock.getpeercert()
                found.add(dict(pair for (pair,) in presented["subject"])["commonName"])
        return found

    def all_names(self, server: "Server") -> set[str]:
        """The same of all ways in."""
        return {name for way in WAYS for name in self.names(server, way)}

    def asked(self, server: "Server") -> None:
        """An answer over HTTP, and one over gRPC."""
        context = ssl.create_default_context(cafile=self.authority.root)
        with httpx.Client(base_url=f"https://localhost:{server.port('http')}", verify=context, timeout=60) as client:
            assert client.get("/v2/models/plain/ready").status_code == 200
        address = f"localhost:{server.port('grpc')}"
        with triton_grpc.InferenceServerClient(address, ssl=True, root_certificates=self.authority.root) as grpc:
            tensor = triton_grpc.InferInput("X", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
            assert grpc.infer("plain", [tensor]).as_numpy("Y").tolist() == [[-1] * 4]


def test_all_workers_take_up_a_certificate_that_is_replaced_and_so_do_those_that_come(
    world: "World", tmp_path: Path
) -> None:
    files = Files(tmp_path)
    first, second, third = (files.authority.issue(name) for name in ("first", "second", "third"))
    files.install(first)
    server = world.serve("--processes=3", "--load-model=plain", *files.flags)
    assert files.all_names(server) == {"first"}
    files.asked(server)
    files.install(second)
    for way, service in zip(WAYS, ("HTTP", "gRPC", "the metrics port"), strict=True):
        stated = f"{service} uses the TLS certificate that is now in"
        server.until(lambda stated=stated: stated in server.log, "the new certificate")  # type: ignore[misc]
        assert files.names(server, way) == {"second"}, "what the log states is so in all workers"
        assert server.log.count(stated) == 1

    os.kill(processes(server)[0], signal.SIGKILL)
    seen = set()
    while "serves again" not in server.log:
        seen |= files.names(server, "http", 1)
    assert seen <= {"second"}
    assert files.all_names(server) == {"second"}

    files.install(third, key=second)
    server.until(lambda: server.log.count("keeps its former TLS certificate") >= len(WAYS), "the refusal")
    assert files.all_names(server) == {"second"}
    replace_workers(server)
    assert files.all_names(server) == {"second"}
    files.asked(server)
    assert "is ended" not in server.log
    assert server.stop() == 0


def test_files_that_are_wrong_at_the_start_are_one_error(world: "World", tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.install(files.authority.issue("first"), key=files.authority.issue("second"))
    server = world.start("--processes=2", *files.flags)
    assert server.ended() == 1
    assert server.log.count("are not a certificate and its key") == 1
