"""What clients send, and what models are called, makes no line of the log, no header and no metric of its own."""

import copy
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.http.messages import Frame, Request
from repoagent_server.http.service import answer_to, route_of
from repoagent_server.program.logs import configure
from repoagent_server.program.options import LogOptions

from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import page_text
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from tests.hostile.front_ends.conftest import Ways, write_identity

_FORGED: Final = 'I1122 10:00:00.000000 1 forged.py:1] "forged"'
HOSTILE: Final = {
    "CR LF": f"a\r\n{_FORGED}\r\nX-Injected: yes\r\n\r\nHTTP/1.1 200 OK\r\n",
    "LF": f"a\n{_FORGED}\nevil_metric 1\n",
    "CR": f"a\r{_FORGED}\r",
    "quotes": 'a"} 1\nevil_metric{x="y"} 2 # "',
    "backslashes": "a\\\\\\n\\",
    "ANSI": "a\x1b[2J\x1b[31m\x1b]0;title\x07",
    "C1": "a\x9b2J\x85" + _FORGED,
    "line separators": f"a\u2028{_FORGED}\u2029\x0b\x0c\x1c\x1d\x1e",
    "directions": "a\u202e\u2066gpj.exe",
    "NUL": "a\0b",
    "format": "a%s%d%n{0}{self}${jndi:ldap://x}%(message)s",
    "long": "a" * 4000,
}
_ALLOWED: Final = {b"content-type", b"content-length", b"connection", b"inference-header-content-length"}
_HEAD: Final = re.compile(r"[IWEV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.<>-]+:\d+\] ")
_UNSEEN: Final = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_QUOTED: Final = 'quote"} 1'
_RAISES: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(str(pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0].decode()))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCore]:
    """A core with a model that gives text back, and models that raise it: in a process, and in the server."""
    folder = tmp_path_factory.mktemp("injection")
    models = folder / "models"
    for name in ("text", "raises", "raises_inside", _QUOTED):
        write_identity(models, name, "STRING")
        if name.startswith("raises"):
            (models / name / "1" / "model.py").write_text(_RAISES)
    with (models / "raises_inside" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "EXECUTION" value { string_value: "in-process" } }\n')
    options = CoreOptions(
        repositories=(str(models),),
        control_mode=ControlMode.EXPLICIT,
        startup_models=("*",),
        workspace_directory=folder / "work",
        cache_directory=folder / "cache",
        exit_on_error=False,
    )
    with ServingCore(options) as running:
        yield running


@pytest.fixture(scope="module")
def ways(start_ways: Any, core: ServingCore) -> Ways:
    """Front ends with a metrics page."""
    made: Ways = start_ways(metrics=lambda: page_text(core.metrics(), [AgentMetrics()]))
    return made


class _Kept(logging.Handler):
    """Keeps records as they are before any form writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        kept = copy.copy(record)
        kept.exc_text = None  # A form may have noted how it shows the exception.
        self.records.append(kept)


def _send_everywhere(ways: Ways, text: str) -> None:
    """``text`` wherever a client may write something, over both protocols; each is answered."""
    name = quote(text, safe="")
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [text]}
    bodies: list[dict[str, Any]] = [
        {"id": text, "inputs": [tensor]},
        {"inputs": [tensor], "parameters": {text: text}},
        {"inputs": [tensor | {"name": text}]},
        {"inputs": [tensor | {"datatype": text}]},
        {"inputs": [tensor], "outputs": [{"name": text}]},
        {"inputs": [tensor | {"parameters": {"shared_memory_region": text, "shared_memory_byte_size": 4}}]},
    ]
    models = ["text", "raises", "raises_inside", name]
    for model in models:
        for body in bodies:
            _post(ways, f"models/{model}/infer", body)
    for path in (f"models/{name}/config", f"models/{name}", name, f"systemsharedmemory/region/{name}/status"):
        assert ways.http.get(f"/v2/{path}").status_code in (400, 404, 501)
    for action in ("load", "unload"):
        _post(ways, f"repository/models/{name}/{action}", {"parameters": {text: text}})
    _post(ways, "logging", {"log_format": text})
    _post(ways, "trace/setting", {"trace_level": [text]})
    _send_over_grpc(ways, text)


def _post(ways: Ways, path: str, body: dict[str, Any]) -> None:
    """The answer is a good one, or an error that somebody thought of."""
    answer = ways.http.post(f"/v2/{path}", json=body)
    assert answer.status_code == 200 or "error" in answer.json(), answer
    assert "the server's log has the details" not in answer.text


def _send_over_grpc(ways: Ways, text: str) -> None:
    raw = [len(text.encode()).to_bytes(4, "little") + text.encode()]
    with grpc.insecure_channel(ways.grpc) as channel:
        for model in ("text", "raises_inside", text):
            tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="BYTES", shape=[1])
            message = pb.ModelInferRequest(model_name=model, id=text, inputs=[tensor], raw_input_contents=raw)
            message.parameters[text].string_param = text
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer", pb.ModelInferRequest.SerializeToString
            )
            answer = call.future(message, timeout=60)
            refused = answer.exception()
            assert refused is None or "the server's log has the details" not in refused.details()
            assert answer.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What has been logged."""
    kept = _Kept()
    loggers = [logging.getLogger(name) for name in ("repoagent", "repoagent_server")]
    for logger in loggers:
        logger.addHandler(kept)
    yield kept.records
    for logger in loggers:
        logger.removeHandler(kept)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_record_is_one_line_of_the_log(
    ways: Ways, tmp_path: Path, records: list[logging.LogRecord], text: str
) -> None:
    with configure(LogOptions(file=tmp_path / "log", verbose=1)):
        _send_everywhere(ways, text)
        logging.getLogger("repoagent").error("%s", text)
    logged = [*records]
    _check(tmp_path / "log", "default", len(logged))
    for form in ("ISO8601", "json"):
        with configure(LogOptions(file=tmp_path / form, verbose=1, format=form)):
            for record in logged:
                logging.getLogger(record.name).handle(record)
        _check(tmp_path / form, form, len(logged))


def _check(log: Path, form: str, count: int) -> None:
    *lines, rest = log.read_bytes().decode().split("\n")
    assert rest == ""
    assert len(lines) == count > 0
    for line in lines:
        assert not _UNSEEN.search(line), line
        assert not line.startswith(_FORGED)
        if form == "default":
            assert _HEAD.match(line), line
        json.loads(line if form == "json" else line.split("] ", 1)[1])


def _heads(ways: Ways, *requests: bytes) -> list[bytes]:
    """The heads of the answers, as they come."""
    heads = []
    for request in requests:
        with socket.create_connection(ways.address, timeout=60) as connection:
            connection.sendall(request)
            received = b""
            while piece := connection.recv(1 << 16):
                received += piece
        heads.append(received.partition(b"\r\n\r\n")[0])
    return heads


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_answer_has_a_header_of_a_client(ways: Ways, text: str) -> None:
    name = quote(text, safe="").encode()
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [text]}
    body = json.dumps({"id": text, "inputs": [tensor], "parameters": {text: text, "binary_data_output": True}}).encode()
    common = b"Host: localhost\r\nConnection: close\r\nX-Value: %b\r\nContent-Length: %d\r\n" % (name, len(body))
    value = re.sub(rb"[\0-\x1f]", b" ", text.encode())  # raw forms are those of test_http_framing.py
    heads = _heads(
        ways,
        *(
            b"POST /v2/models/%b/%b HTTP/1.1\r\n%bX-Raw: %b\r\n\r\n%b" % (model, action, common, value, body)
            for model in (b"text", b"raises", name)
            for action in (b"infer", b"generate", b"generate_stream", b"invocations", name)
        ),
    )
    for head in heads:
        status, *headers = head.split(b"\r\n")
        assert re.fullmatch(rb"HTTP/1\.1 \d{3} [A-Za-z' -]+", status), head
        assert {header.partition(b":")[0].lower() for header in headers} <= _ALLOWED, head
        assert b"njected" not in head


@pytest.mark.slow
def test_no_request_makes_a_metric(ways: Ways) -> None:
    """Names of models that exist are the only ones that clients can have written there."""
    # Models of other servers in this process may have metrics of their own, which all of them show.
    names_before, models_before = _metric_names(ways)
    for text in HOSTILE.values():
        _send_everywhere(ways, text)
    families = list(text_string_to_metric_families(ways.http.get("/metrics").text))
    assert any(sample.value > 0 for family in families for sample in family.samples)
    names, models = _metric_names(ways)
    assert all(name.startswith(("nv_", "repoagent_")) for name in names - names_before)
    assert models - models_before <= {"text", "raises", "raises_inside", _QUOTED}


def _metric_names(ways: Ways) -> tuple[set[str], set[str]]:
    """The families of the metrics page, and the values of the label ``model``."""
    families = list(text_string_to_metric_families(ways.http.get("/metrics").text))
    labels = [sample.labels for family in families for sample in family.samples]
    return {family.name for family in families}, {each["model"] for each in labels if "model" in each}


def test_the_name_of_a_model_that_has_quotes_is_one_value_of_a_label(ways: Ways) -> None:
    """Such a name is either refused when the model loads, or it is a label as it stands."""
    path = quote(_QUOTED, safe="")
    served = ways.http.get(f"/v2/models/{path}/ready").status_code == 200
    families = list(text_string_to_metric_families(ways.http.get("/metrics").text))
    models = {sample.labels.get("model") for family in families for sample in family.samples}
    assert (_QUOTED in models) == served


# Clients put secrets into queries: what is logged about a request has its path alone.

SECRET = "api_key=s3cret"


def test_a_fault_is_logged_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(b"POST", b"/v2/models/m/infer?" + SECRET.encode(), (), Frame())
    with caplog.at_level(logging.ERROR):
        answer_to(RuntimeError("broken"), request)
    assert "POST /v2/models/m/infer" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(route_of(Request(b"GET", b"/" + b"x" * 60_000, (), Frame()))) < 600
