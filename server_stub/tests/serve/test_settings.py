"""Log, traces, restrictions and forwarding in a real child process, by its flags and NVIDIA's clients."""

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

SECRET: Final = "s3cret"
HTTP_KEY: Final = {"admin-key": SECRET}
GRPC_KEY: Final = {"triton-grpc-protocol-admin-key": SECRET}
PARTS: Final = "trace,logging,model-repository"
LOG: Final = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 1,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def served(world: Any) -> Any:
    world.model("m")
    return world.start(
        "--model-control-mode=explicit",
        "--load-model=m",
        "--log-verbose=1",
        f"--http-restricted-api={PARTS}:admin-key={SECRET}",
        f"--grpc-restricted-protocol={PARTS}:admin-key={SECRET}",
        "--http-header-forward-pattern=^x-",
        "--grpc-header-forward-pattern=^x-",
        f"--trace-config=triton,file={world.root / 'traces.json'}",
    ).wait_ready()


@pytest.fixture(scope="module")
def http(served: Any) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{served.port('http')}") as client:
        yield client


@pytest.fixture(scope="module")
def grpc(served: Any) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{served.port('grpc')}") as client:
        yield client


def ask(library: Any, client: Any, **more: Any) -> list[float]:
    tensor = library.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[-1, 2, -3, 4]], np.float32))
    values: list[float] = client.infer("m", [tensor], **more).as_numpy("Y")[0].tolist()
    return values


def test_what_is_not_restricted_is_open(http: Any, grpc: Any) -> None:
    answer = ask(tritonclient.http, http, headers={"x-tenant": "a"})
    assert answer == ask(tritonclient.grpc, grpc, headers={"x-tenant": "a"}) == [1.0, -2.0, 3.0, -4.0]


def test_what_is_restricted_needs_the_header(http: Any, grpc: Any) -> None:
    for refused in (
        http.get_log_settings,
        http.get_trace_settings,
        lambda: http.load_model("m"),
        lambda: http.get_log_settings(headers={"admin-key": "guess"}),
        grpc.get_log_settings,
        grpc.get_trace_settings,
        lambda: grpc.load_model("m"),
        lambda: grpc.get_log_settings(headers=HTTP_KEY),
    ):
        with pytest.raises(InferenceServerException, match="is restricted, expecting header") as raised:
            refused()
        assert SECRET not in str(raised.value)
    assert http.get_log_settings(headers=HTTP_KEY) == LOG
    assert grpc.get_log_settings(headers=GRPC_KEY, as_json=True)["settings"]["log_info"] == {"bool_param": True}


def test_the_log_changes_while_the_server_runs(served: Any, http: Any, grpc: Any) -> None:
    def lines_of_a_reload() -> list[str]:
        before = len(served.log)
        http.unload_model("m", headers=HTTP_KEY)
        http.load_model("m", headers=HTTP_KEY)
        return [line for line in served.log[before:].splitlines() if "successfully loaded" in line]

    assert lines_of_a_reload()[0].startswith("I")
    grpc.update_log_settings({"log_info": False, "log_verbose_level": 0}, headers=GRPC_KEY)
    assert lines_of_a_reload() == []
    http.update_log_settings({"log_info": True, "log_format": "json"}, headers=HTTP_KEY)
    assert json.loads(lines_of_a_reload()[0])["level"] == "INFO"
    http.update_log_settings({name: LOG[name] for name in LOG if name != "log_file"}, headers=HTTP_KEY)
    assert http.get_log_settings(headers=HTTP_KEY) == LOG  # The other tests of this server find it as it was.
    assert SECRET not in served.log


def test_a_model_is_traced_when_a_client_says_so(world: Any, http: Any, grpc: Any) -> None:
    changes = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"}
    changed = grpc.update_trace_settings("m", changes, headers=GRPC_KEY, as_json=True)
    assert changed["settings"]["trace_level"] == {"value": ["TIMESTAMPS"]}
    assert http.get_trace_settings("m", headers=HTTP_KEY)["trace_rate"] == "1"
    assert http.get_trace_settings(headers=HTTP_KEY)["trace_level"] == ["OFF"]
    ask(tritonclient.http, http)
    http.update_trace_settings("m", dict.fromkeys(changes), headers=HTTP_KEY)
    ask(tritonclient.http, http)
    records = json.loads((world.root / "traces.json.0").read_text())
    assert [record["model_name"] for record in records if "model_name" in record] == ["m"]
    assert not (world.root / "traces.json.1").exists()
