"""The logging extension over gRPC."""

from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.utils import InferenceServerException

from repoagent.server import LogLevel
from repoagent.server.logs import ServerLog


@pytest.mark.slow
def test_answers_as_triton_does(stub: Any, ask: Any, log: ServerLog, recorded: dict[str, Any]) -> None:
    for case in recorded["grpc log"]:
        message = json_format.ParseDict(case["request"], theirs.LogSettingsRequest())
        assert ask(stub.LogSettings, message) == (case["code"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings(client: Any, log: ServerLog) -> None:
    changed = client.update_log_settings({"log_verbose_level": 1, "log_warning": False}, as_json=True)
    assert changed == client.get_log_settings(as_json=True)
    assert changed["settings"]["log_verbose_level"] == {"uint32_param": 1}
    assert not log.enabled(LogLevel.WARN)
    with pytest.raises(InferenceServerException, match="expect boolean for 'log_info'"):
        client.update_log_settings({"log_info": None})
