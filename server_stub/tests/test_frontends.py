"""The front ends of ``tritonfrontend``, over a running in-process server."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repoagent_server import KServeGrpc, KServeHttp, Metrics
from tritonclient.utils import InferenceServerException

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from repoagent.server import Server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    shutil.copytree(EXAMPLE / "repository" / "digits", repository / "digits")
    with Server(model_repository=str(repository)) as server:
        yield server


def ask(client_library: Any, address: tuple[str, int]) -> list[list[int]]:
    with client_library.InferenceServerClient("{}:{}".format(*address)) as client:
        tensor = client_library.InferInput("pixels", [1, 64], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 64), np.float32))
        label: list[list[int]] = client.infer("digits", [tensor]).as_numpy("label").tolist()
        return label


def successes(address: tuple[str, int]) -> int:
    """How many requests have been answered, those of earlier tests included."""
    page = httpx.get("http://{}:{}/metrics".format(*address)).text
    (count,) = re.findall(r'^nv_inference_request_success{model="digits",version="1"} (\d+)$', page, re.MULTILINE)
    return int(count)


def test_three_lines_put_each_protocol_over_a_server(server: Server) -> None:
    with (
        KServeHttp(server, KServeHttp.Options(port=0)) as http,
        KServeGrpc(server, KServeGrpc.Options(port=0)) as grpc,
        Metrics(server, Metrics.Options(port=0)) as metrics,
    ):
        before = successes(metrics.address)
        assert ask(tritonclient.http, http.address) == ask(tritonclient.grpc, grpc.address)
        assert successes(metrics.address) == before + 2


def test_a_front_end_can_be_started_again_after_it_was_stopped(server: Server) -> None:
    service = KServeHttp(server, KServeHttp.Options(port=0))
    for _ in range(2):
        service.start()
        assert httpx.get("http://{}:{}/v2/health/live".format(*service.address)).status_code == 200
        service.stop()
    service.stop()
    with pytest.raises(InvalidArgumentError, match="server is not running"):
        service.address  # noqa: B018


def test_shared_memory_is_one_for_all_front_ends_that_allow_it(server: Server, objects: Any) -> None:
    objects.make("pixels", 256)
    with (
        KServeHttp(server, KServeHttp.Options(port=0, allow_client_shm=True)) as http,
        KServeGrpc(server, KServeGrpc.Options(port=0, allow_client_shm=True)) as grpc,
        KServeHttp(server, KServeHttp.Options(port=0)) as without,
        tritonclient.http.InferenceServerClient("{}:{}".format(*http.address)) as over_http,
        tritonclient.grpc.InferenceServerClient("{}:{}".format(*grpc.address)) as over_grpc,
        tritonclient.http.InferenceServerClient("{}:{}".format(*without.address)) as refused,
    ):
        over_http.register_system_shared_memory("pixels", objects.key("pixels"), 256)
        tensor = tritonclient.grpc.InferInput("pixels", [1, 64], "FP32")
        tensor.set_shared_memory("pixels", 256)
        assert over_grpc.infer("digits", [tensor]).as_numpy("label").size == 1
        with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
            refused.get_system_shared_memory_status()
        over_grpc.unregister_system_shared_memory()
        assert over_http.get_system_shared_memory_status() == []


def test_starting_twice_is_an_error(server: Server) -> None:
    with KServeHttp(server, KServeHttp.Options(port=0)) as service, pytest.raises(AlreadyExistsError) as raised:
        service.start()
    assert str(raised.value) == "server is already running."


@pytest.mark.parametrize("kind", [KServeHttp, KServeGrpc, Metrics])
def test_options_of_another_kind_and_values_out_of_range_are_refused(server: Server, kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Incorrect type for options\. options argument must be of type"):
        kind(server, object())
    with pytest.raises(InvalidArgumentError, match="port must be from 0 to 65535, not 70000"):
        kind.Options(port=70000)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (KServeHttp, {"port": "8000"}, r"Options\.port must be int, not str: '8000'"),
        (KServeHttp, {"allowed_hosts": "models.example"}, r"allowed_hosts must be tuple\[str, \.\.\.\], not str"),
        (KServeHttp, {"thread_count": -5}, "thread_count must be from 0 to 2147483647, not -5"),
        (KServeHttp, {"thread_count": 0}, "thread_count must be above 0, not 0"),
        (Metrics, {"address": 127}, r"Options\.address must be str, not int: 127"),
        (KServeGrpc, {"use_ssl": "no"}, r"Options\.use_ssl must be bool, not str: 'no'"),
        (KServeGrpc, {"infer_thread_count": -1}, "infer_thread_count must be from 0 to 2147483647, not -1"),
        (KServeGrpc, {"keepalive_time_ms": -1}, "keepalive_time_ms must be from 0 to 2147483647, not -1"),
        (KServeGrpc, {"max_connection_age_ms": 1 << 31}, "max_connection_age_ms must be from 0 to 2147483647"),
        (KServeGrpc, {"max_message_bytes": -2}, "max_message_bytes must be from -1 to 2147483647, not -2"),
        (KServeGrpc, {"infer_compression_level": "max"}, "must be one of none, low, medium, high or its number"),
        (KServeGrpc, {"infer_compression_level": KServeGrpc.Grpc_compression_level.COUNT}, r"\(0 to 3\), not"),
    ],
)
def test_wrong_types_and_numbers_that_mean_nothing_are_refused_by_the_options(
    kind: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kind.Options(**values)


def test_the_levels_of_compression_have_the_names_and_numbers_of_triton() -> None:
    names = {level.name: level.value for level in KServeGrpc.Grpc_compression_level}
    assert names == {"NONE": 0, "LOW": 1, "MED": 2, "HIGH": 3, "COUNT": 4}


@pytest.mark.parametrize(
    ("level", "number"),
    [
        (KServeGrpc.Grpc_compression_level.NONE, 0),
        (0, 0),
        ("none", 0),
        (KServeGrpc.Grpc_compression_level.MED, 2),
        (3, 3),
        ("high", 3),
    ],
)
def test_a_level_of_compression_is_given_by_member_number_or_name(server: Server, level: Any, number: int) -> None:
    options = KServeGrpc.Options(port=0, infer_compression_level=level)
    assert options.compression_level() == number
    with KServeGrpc(server, options) as service:
        assert len(ask(tritonclient.grpc, service.address)) == 1


def test_a_port_in_use_and_a_server_that_is_not_started_are_errors(server: Server) -> None:
    with KServeHttp(server, KServeHttp.Options(port=0)) as service:
        options = KServeHttp.Options(port=service.address[1])
        with pytest.raises(UnavailableError):
            KServeHttp(server, options).start()
    for kind in (KServeHttp, KServeGrpc, Metrics):
        with pytest.raises(InvalidArgumentError, match="Server not started"):
            kind(Server(model_repository="nowhere")).start()
