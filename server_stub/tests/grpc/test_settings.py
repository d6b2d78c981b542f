"""The extensions of logging and tracing over gRPC."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.utils import InferenceServerException

from repoagent.server import LogLevel
from repoagent.server.logs import ServerLog
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer


@pytest.mark.slow
def test_log_settings_answer_as_triton_does(stub: Any, ask: Any, log: ServerLog, recorded: dict[str, Any]) -> None:
    for case in recorded["grpc log"]:
        message = json_format.ParseDict(case["request"], theirs.LogSettingsRequest())
        assert ask(stub.LogSettings, message) == (case["code"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings_of_the_log(client: Any, log: ServerLog) -> None:
    changed = client.update_log_settings({"log_verbose_level": 1, "log_warning": False}, as_json=True)
    assert changed == client.get_log_settings(as_json=True)
    assert changed["settings"]["log_verbose_level"] == {"uint32_param": 1}
    assert not log.enabled(LogLevel.WARN)
    with pytest.raises(InferenceServerException, match="expect boolean for 'log_info'"):
        client.update_log_settings({"log_info": None})


@pytest.mark.parametrize(("kind", "file"), [("grpc trace without file", ""), ("grpc trace", "traces.json")])
def test_trace_settings_answer_as_triton_does(
    core: Any, stub: Any, ask: Any, recorded: dict[str, Any], kind: str, file: str
) -> None:
    core.tracer = Tracer(TraceSettings(file=file))
    for case in recorded[kind]:
        message = json_format.ParseDict(case["request"], theirs.TraceSettingRequest())
        assert ask(stub.TraceSetting, message) == (case["code"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings_of_traces(core: Any, tmp_path: Path, client: Any) -> None:
    core.tracer = Tracer(TraceSettings(file=str(tmp_path / "traces")))
    changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "7"}
    changed = client.update_trace_settings(settings=changes, as_json=True)
    assert changed == client.get_trace_settings(as_json=True) == client.get_trace_settings("ident", as_json=True)
    assert changed["settings"]["trace_count"] == {"value": ["7"]}
    assert core.tracer.settings().level == {"TIMESTAMPS", "TENSORS"}
    client.update_trace_settings(settings={"trace_level": None, "trace_count": None})
    assert core.tracer.settings() == TraceSettings(file=str(tmp_path / "traces"))
    with pytest.raises(InferenceServerException, match="Request for unknown model : nosuch"):
        client.get_trace_settings("nosuch")
