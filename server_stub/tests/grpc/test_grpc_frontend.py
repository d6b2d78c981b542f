"""Starting, stopping and securing the front end."""

import queue
import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.utils import InferenceServerException

from repoagent.errors import InvalidArgumentError, UnavailableError
from tests.certificates import Authority


def ask(client: triton.InferenceServerClient, model: str = "ident") -> Any:
    tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return client.infer(model, [tensor]).as_numpy("OUTPUT0")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a self-signed certificate for localhost, made by openssl."""
    directory = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    alternative = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command.split(), *alternative, *files], check=True, capture_output=True)
    return directory


def test_tls(start_grpc: Any, certificates: Path) -> None:
    key, cert = str(certificates / "key.pem"), str(certificates / "cert.pem")
    port = start_grpc(use_ssl=True, server_cert=cert, server_key=key)
    with triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=cert) as client:
        assert ask(client).tolist() == [[1.0]]


def test_mutual_tls_wants_a_certificate_of_the_client(start_grpc: Any, certificates: Path) -> None:
    key, cert = str(certificates / "key.pem"), str(certificates / "cert.pem")
    port = start_grpc(use_mutual_auth=True, server_cert=cert, server_key=key, root_cert=cert)
    secrets = {"root_certificates": cert, "private_key": key, "certificate_chain": cert}
    with triton.InferenceServerClient(f"localhost:{port}", ssl=True, **secrets) as client:
        assert client.is_server_live()
    with (
        triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=cert) as stranger,
        pytest.raises(InferenceServerException),
    ):
        stranger.is_server_live(client_timeout=60)


def test_a_missing_certificate_is_named(core: Any, tmp_path: Path) -> None:
    options = GrpcOptions(port=0, use_ssl=True, server_cert=str(tmp_path / "no.pem"), server_key=str(tmp_path / "no"))
    with pytest.raises(InvalidArgumentError, match="cannot read --grpc-server-key"):
        GrpcFrontend(Served(core), options).bind()


def test_an_address_in_use_is_an_error(core: Any, grpc_port: int) -> None:
    with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{grpc_port}"):
        GrpcFrontend(Served(core), GrpcOptions(port=grpc_port)).bind()


def test_one_that_could_not_listen_is_stopped_all_the_same(core: Any, grpc_port: int) -> None:
    front = GrpcFrontend(Served(core), GrpcOptions(port=grpc_port))
    with pytest.raises(UnavailableError):
        front.start()
    front.stop()
    front.stop()


def test_running_calls_finish_and_new_ones_are_refused_while_stopping(core: Any) -> None:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    with triton.InferenceServerClient("{}:{}".format(*frontend.bind())) as client:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.async_infer("slow", [_one()], lambda result, error: answers.put(result))
        assert core.submitted.wait(60)
        frontend.refuse()
        with pytest.raises(InferenceServerException, match="it is stopping"):
            ask(client)
        assert not client.is_server_ready()
        core.gate.set()
        assert answers.get(timeout=60).as_numpy("OUTPUT0").tolist() == [[1.0]]
        assert frontend.drain(5)


@pytest.mark.slow
def test_a_stream_that_a_client_holds_open_does_not_keep_a_front_end_from_stopping(core: Any) -> None:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    with triton.InferenceServerClient("{}:{}".format(*frontend.bind())) as client:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("slow", [_one()])
        assert core.submitted.wait(60)
        stopping = threading.Thread(target=frontend.drain, args=(3600,))
        stopping.start()
        core.gate.set()
        result, error = answers.get(timeout=60)
        assert (result.as_numpy("OUTPUT0").tolist(), error) == ([[1.0]], None)
        stopping.join(60)
        assert not stopping.is_alive()


def test_a_front_end_that_was_only_bound_can_be_stopped(core: Any) -> None:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    address, port = frontend.bind()
    frontend.stop()
    frontend.stop()
    assert (address, port > 0) == ("127.0.0.1", True)


def _one() -> triton.InferInput:
    tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return tensor


def test_a_key_that_is_not_the_certificates_is_told(core: Any, certificates: Path) -> None:
    key, cert = str(certificates / "key.pem"), str(certificates / "cert.pem")
    swapped = GrpcOptions(port=0, use_ssl=True, server_cert=key, server_key=cert)
    with pytest.raises(InvalidArgumentError, match=r"key\.pem' and .*cert\.pem' are not a certificate and its key"):
        GrpcFrontend(Served(core), swapped).bind()
    no_root = GrpcOptions(port=0, use_ssl=True, server_cert=cert, server_key=key, root_cert=key)
    with pytest.raises(InvalidArgumentError, match=r"key\.pem' holds no certificate"):
        GrpcFrontend(Served(core), no_root).bind()


def test_a_certificate_without_tls_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert GrpcOptions(server_cert="cert.pem").tls_files() is None
    assert "gRPC is served WITHOUT TLS" in caplog.text


@pytest.mark.slow
def test_a_certificate_that_changes_is_used_for_new_connections(
    start_grpc: Any, certificates: Path, tmp_path: Path
) -> None:
    key, cert = tmp_path / "tls.key", tmp_path / "tls.crt"
    shutil.copy(certificates / "key.pem", key)
    shutil.copy(certificates / "cert.pem", cert)
    port = start_grpc(use_ssl=True, server_cert=str(cert), server_key=str(key))
    first = ssl.get_server_certificate(("127.0.0.1", port))
    with triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(cert)) as kept:
        assert kept.is_server_live()
        following = Authority(tmp_path).issue("following")
        shutil.copy(following.certificate, cert)
        shutil.copy(following.key, key)
        while ssl.get_server_certificate(("127.0.0.1", port)) == first:
            pass
        assert kept.is_server_live()
