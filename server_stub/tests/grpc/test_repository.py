"""Parameters of load and unload that make no sense; the texts are those of a stock Triton 2.51."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("foo", {"string_param": "x"}, "unrecognized load parameter 'foo'."),
        ("config", {"int64_param": 1}, "invalid value type for load parameter 'config', expected string_param."),
        ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:x", {"string_param": "x"}, "invalid value type for load parameter 'file:x', expected bytes_param."),
    ],
)
def test_a_load_parameter_that_makes_no_sense(stub: Any, ask: Any, name: str, value: dict[str, Any], text: str) -> None:
    message = service_pb2.RepositoryModelLoadRequest(model_name="ident")
    message.parameters[name].CopyFrom(service_pb2.ModelRepositoryParameter(**value))
    assert ask(stub.RepositoryModelLoad, message) == ("INVALID_ARGUMENT", text)


def test_dependents_are_asked_for_with_a_boolean(core: Any, stub: Any, ask: Any) -> None:
    message = service_pb2.RepositoryModelUnloadRequest(model_name="ident")
    message.parameters["unload_dependents"].string_param = "x"
    text = "invalid value type for 'unload_dependents' parameter, expected bool_param."
    assert ask(stub.RepositoryModelUnload, message) == ("INVALID_ARGUMENT", text)
    message.parameters["unload_dependents"].bool_param = True
    message.parameters["other"].string_param = "is passed over"
    assert ask(stub.RepositoryModelUnload, message) == ("OK", {})
    assert core.calls == [("unload", "ident", True)]


def test_one_version_is_loaded_and_unloaded_by_a_parameter(core: Any, stub: Any, ask: Any) -> None:
    load = service_pb2.RepositoryModelLoadRequest(model_name="ident")
    load.parameters["version"].int64_param = 3
    assert ask(stub.RepositoryModelLoad, load) == ("OK", {})
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="ident")
    unload.parameters["version"].string_param = "3"
    unload.parameters["unload_dependents"].bool_param = True
    assert ask(stub.RepositoryModelUnload, unload) == ("OK", {})
    assert core.calls == [("load", "ident", None, None, 3), ("unload", "ident", False, 3)]
    for wrong in ({"bool_param": True}, {"string_param": ""}, {"string_param": "x"}, {"int64_param": -2}):
        load.parameters["version"].CopyFrom(service_pb2.ModelRepositoryParameter(**wrong))
        assert ask(stub.RepositoryModelLoad, load)[0] == "INVALID_ARGUMENT"
    assert len(core.calls) == 2
