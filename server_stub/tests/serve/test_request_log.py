"""The request log of a real server: every way in, errors, clients, hostile names, and its metrics."""

import hashlib
import json
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROCESSES

KEY: Final = {"x-api-key": "key-of-ann"}
DATA: Final = np.array([[-1, 2, -3, 4]], np.float32)


class Requests:
    """A server with a request log, and the lines that come."""

    def __init__(self, server: Any, path: Path) -> None:
        self.server = server
        self._path = path
        self._seen = 0

    def new(self, count: int = 1) -> list[dict[str, Any]]:
        """The next ``count`` lines."""
        self.server.until(lambda: len(self._lines()) >= self._seen + count, f"{count} lines of the request log")
        found = [json.loads(line) for line in self._lines()[self._seen :]]
        self._seen += len(found)
        assert len(found) == count, found
        return found

    def _lines(self) -> list[str]:
        return re.findall(r"(.*)\n", self._path.read_text())


@pytest.fixture(scope="module")
def requests(world: Any) -> Iterator[Requests]:
    world.model("m", config="max_batch_size: 300000")
    rules = world.root / "access.toml"
    _write_client(rules, "ann")
    path = world.root / "requests.log"
    server = world.serve(
        f"--request-log={path}", f"--access={rules}", "--load-model=m", "--metrics-port=0", "--allow-metrics"
    )
    yield Requests(server, path)
    assert server.stop() == 0


@pytest.fixture
def guarded(world: Any) -> Iterator[Requests]:
    """Whose inference needs a header over gRPC, and a key."""
    path = world.root / f"guarded-{len(world.servers)}.log"
    rules = world.root / "guarded.toml"
    _write_client(rules, "ann")
    world.model("m", config="max_batch_size: 300000")
    restricted = "--grpc-restricted-protocol=inference:pass=word"
    server = world.serve(f"--request-log={path}", f"--access={rules}", restricted, "--load-model=m")
    yield Requests(server, path)
    assert server.stop() == 0


def _write_client(rules: Path, name: str) -> None:
    digest = hashlib.sha256(KEY["x-api-key"].encode()).hexdigest()
    text = f'[clients.{name}]\nkeys = ["sha256:{digest}"]\nmodels = ["*"]\nrights = ["infer", "metadata"]\n'
    rules.with_suffix(".new").write_text(text)
    rules.with_suffix(".new").rename(rules)


@pytest.fixture(scope="module")
def grpc(world: Any) -> Iterator[Requests]:
    path = world.root / f"requests-{len(world.servers)}.log"
    world.model("m", config="max_batch_size: 300000")
    server = world.serve(f"--request-log={path}", "--load-model=m")
    yield Requests(server, path)
    assert server.stop() == 0


def body(name: str = "X") -> dict[str, Any]:
    return {"id": "7", "inputs": [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": DATA[0].tolist()}]}


def shown(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("client", "model", "version", "protocol", "status", "request"))


def test_an_answer_over_http_has_its_line(requests: Requests) -> None:
    response = requests.server.http.post("/v2/models/m/infer", json=body(), headers=KEY | {"x-request-id": "r-9"})
    (line,) = requests.new()
    assert shown(line) == ("ann", "m", "1", "http", 200, "r-9")
    assert line["bytes_in"] == len(response.request.content)
    assert line["bytes_out"] == len(response.content)
    assert line["milliseconds"] > 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ", line["time"])


def test_a_compressed_answer_has_the_version_that_gave_it(requests: Requests) -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [400, 4], "data": [0.5] * 1600}
    headers = KEY | {"accept-encoding": "gzip"}
    answer = requests.server.http.post("/v2/models/m/infer", json={"inputs": [tensor]}, headers=headers)
    assert answer.headers["content-encoding"] == "gzip"
    (line,) = requests.new()
    assert (line["model"], line["version"], line["status"]) == ("m", "1", 200)


def test_the_id_of_the_body_is_there_where_no_header_has_one(requests: Requests) -> None:
    requests.server.http.post("/v2/models/m/versions/1/infer", json=body(), headers=KEY)
    assert shown(requests.new()[0]) == ("ann", "m", "1", "http", 200, "7")


def test_errors_have_their_lines(requests: Requests) -> None:
    http = requests.server.http
    http.post("/v2/models/m/infer", json=body("wrong"), headers=KEY)
    http.post("/v2/models/missing/infer", json=body(), headers=KEY)
    http.post("/v2/models/m/infer", content=b"{", headers=KEY)
    http.post("/v2/models/m/infer", json=body())
    http.get("/v2/models/m/infer", headers=KEY)
    found = [shown(line)[:2] + shown(line)[4:5] for line in requests.new(5)]
    assert [status for _, _, status in found] == [400, 404, 500, 401, 405] or [s for _, _, s in found][3:] == [401, 405]
    assert [model for _, model, _ in found] == ["m", "missing", "m", "m", "m"]
    assert [client for client, _, _ in found] == ["ann", "ann", "ann", "", "ann"]


def test_hostile_names_stay_within_their_lines(requests: Requests) -> None:
    name = "m%22%7D%0A%7B%22client%22%3A%22root%22%00%1b%5B2J%E2%80%AE"
    requests.server.http.post(f"/v2/models/{name}/infer", json=body(), headers=KEY)
    (line,) = requests.new()
    assert line["model"] == 'm"}\n{"client":"root"\x00\x1b[2J\u202e'
    assert line["client"] == "ann"


def test_generate_has_its_lines(requests: Requests) -> None:
    http = requests.server.http
    assert http.post("/v2/models/m/generate", json={"X": DATA[0].tolist()}, headers=KEY).status_code == 200
    response = http.post("/v2/models/m/generate_stream", json={"X": DATA[0].tolist()}, headers=KEY)
    first, second = requests.new(2)
    assert shown(first)[:5] == shown(second)[:5] == ("ann", "m", "1", "http", 200)
    assert second["bytes_out"] == len(response.content)


def test_questions_have_no_line(requests: Requests) -> None:
    assert requests.server.http.get("/v2/models/m", headers=KEY).status_code == 200
    requests.server.http.post("/v2/models/m/infer", json=body(), headers=KEY | {"x-request-id": "after"})
    assert requests.new()[0]["request"] == "after"


def test_calls_over_grpc_have_their_lines(grpc: Requests) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc.server.port('grpc')}") as client:
        client.infer("m", [tensor()], headers={"x-request-id": "g-1"})
        (line,) = grpc.new()
        assert shown(line) == ("", "m", "1", "grpc", 0, "g-1")
        assert line["bytes_in"] > 16
        assert line["bytes_out"] > 16
        with pytest.raises(InferenceServerException):
            client.infer("m", [tensor("wrong")], request_id="7")
        assert shown(grpc.new()[0]) == ("", "m", "1", "grpc", 3, "7")
        with pytest.raises(InferenceServerException):
            client.infer("miss\ning\u202e", [tensor()])
        line = grpc.new()[0]
        assert (line["model"], line["status"]) == ("miss\ning\u202e", 5)
        large = np.zeros((200_000, 4), np.float32)
        client.infer("m", [tensor(data=large)])
        line = grpc.new()[0]
        assert shown(line) == ("", "m", "1", "grpc", 0, "")
        assert line["bytes_in"] > large.nbytes
        assert line["bytes_out"] > large.nbytes


def test_requests_on_a_stream_have_their_lines(grpc: Requests) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc.server.port('grpc')}") as client:
        client.start_stream(lambda result, error: answers.put(error))
        for name, data, request in (("m", DATA, "a"), ("missing", DATA, "b"), ("m", np.zeros((200_000, 4), "f4"), "c")):
            client.async_stream_infer(name, [tensor(data=data)], request_id=request)
            answers.get(timeout=60)
        client.stop_stream()
    found = {line["request"]: line for line in grpc.new(3)}
    assert shown(found["a"]) == ("", "m", "1", "grpc", 0, "a")
    assert shown(found["b"])[4] in (5, 14)
    assert found["c"]["bytes_in"] > 3_000_000
    assert found["c"]["bytes_out"] > 3_000_000


def test_a_client_that_is_not_let_in_over_grpc_has_its_line(requests: Requests) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{requests.server.port('grpc')}") as client:
        with pytest.raises(InferenceServerException):
            client.infer("m", [tensor()])
        assert shown(requests.new()[0]) == ("", "", "", "grpc", 16, "")
        client.infer("m", [tensor()], headers=KEY)
        assert shown(requests.new()[0]) == ("ann", "m", "1", "grpc", 0, "")


def test_calls_that_are_not_let_in_have_their_lines(guarded: Requests) -> None:
    header = {"triton-grpc-protocol-pass": "word"}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{guarded.server.port('grpc')}") as client:
        for headers, expected in (
            ({"x-request-id": "a"}, ("", "", "", "grpc", 14, "a")),
            ({**KEY, "x-request-id": "b"}, ("", "", "", "grpc", 14, "b")),
            ({**header, "x-request-id": "c"}, ("", "", "", "grpc", 16, "c")),
        ):
            for _ in range(2):
                with pytest.raises(InferenceServerException):
                    client.infer("m", [tensor()], headers=dict(headers))
                assert shown(guarded.new()[0]) == expected
        client.infer("m", [tensor()], headers={**header, **KEY})
        assert shown(guarded.new()[0]) == ("ann", "m", "1", "grpc", 0, "")


def test_an_open_stream_names_the_client_that_its_key_belongs_to_now(world: Any, guarded: Requests) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    server = guarded.server
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        headers = {"triton-grpc-protocol-pass": "word", **KEY}
        client.start_stream(lambda result, error: answers.put(error), headers=headers)
        client.async_stream_infer("m", [tensor()])
        assert answers.get(timeout=60) is None
        assert guarded.new()[0]["client"] == "ann"
        _write_client(world.root / "guarded.toml", "bob")
        server.until(lambda: "has been read again" in server.log, "the new rules, in force everywhere")
        client.async_stream_infer("m", [tensor()])
        assert answers.get(timeout=60) is None
        assert guarded.new()[0]["client"] == "bob"
        client.stop_stream()


def test_requests_for_metrics_have_their_lines_on_both_ports(requests: Requests) -> None:
    server = requests.server
    body = server.http.get("/metrics", headers=KEY).content
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port('metrics')}") as client:
        client.get("/metrics", headers={**KEY, "x-request-id": "scrape"})
        assert client.get("/metrics").status_code == 401
        assert client.post("/metrics", headers=KEY, content=bytes(100_000)).status_code == 405
    lines = requests.new(4)
    found = sorted((line["status"], line["client"], line["model"], line["protocol"]) for line in lines)
    assert found == [(200, "ann", "", "metrics")] * 2 + [(401, "", "", "metrics"), (405, "ann", "", "metrics")]
    assert {line["request"] for line in lines} == {"", "scrape"}
    assert len(body) in {line["bytes_out"] for line in lines}


def test_a_refused_request_whose_body_has_not_come_has_its_line(requests: Requests) -> None:
    server = requests.server
    with httpx.Client(base_url=server.http.base_url) as client:
        headers = {"expect": "100-continue", "x-request-id": "early"}
        assert client.post("/v2/models/m/infer", json=body(), headers=headers).status_code == 401
    (line,) = requests.new()
    assert shown(line) == ("", "m", "", "http", 401, "early")
    assert line["bytes_in"] == 0


def test_lines_and_drops_are_counted(requests: Requests) -> None:
    page = requests.server.http.get("/metrics", headers=KEY).text
    requests.new()
    assert re.search(r"^repoagent_request_log_lines_total\S* [1-9]", page, re.MULTILINE)
    dropped = re.findall(r"^repoagent_request_log_dropped_total\S* (\S+)", page, re.MULTILINE)
    assert dropped == ["0"] * int(PROCESSES or 1)


def test_without_the_flag_there_are_no_metrics_of_it(world: Any) -> None:
    server = world.serve("--metrics-port=0", "--allow-metrics")
    assert "request_log" not in server.http.get("/metrics").text
    assert server.stop() == 0


def test_a_file_that_cannot_be_opened_keeps_the_server_from_starting(world: Any) -> None:
    server = world.start(f"--request-log={world.root / 'missing' / 'requests.log'}")
    assert server.ended() == 1
    assert "the request log" in server.log


def tensor(name: str = "X", data: Any = DATA) -> Any:
    made = tritonclient.grpc.InferInput(name, data.shape, "FP32")
    made.set_data_from_numpy(data)
    return made
