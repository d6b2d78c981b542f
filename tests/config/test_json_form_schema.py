"""The schema is Triton's, and lives beside Triton's own in one process."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

import repoagent.config
from repoagent.config import model_config_pb2

_HAS_GRPC_CLIENT = all(importlib.util.find_spec(name) for name in ("grpc", "tritonclient"))
needs_grpc_client = pytest.mark.skipif(not _HAS_GRPC_CLIENT, reason="needs grpcio and tritonclient")

_PARAMETERS = "ModelRepositoryAgents.Agent"


def _describe(file: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """Everything in a schema that text, JSON or bytes depend on, by qualified name, without the package."""
    found: dict[str, Any] = {}

    def enum(prefix: str, kind: descriptor_pb2.EnumDescriptorProto) -> None:
        found[f"{prefix}{kind.name}"] = {value.name: value.number for value in kind.value}

    def message(prefix: str, kind: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}{kind.name}"
        found[name] = [oneof.name for oneof in kind.oneof_decl]
        for field in kind.field:
            type_name = field.type_name.removeprefix(f".{file.package}.")
            oneof = kind.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            found[f"{name}.{field.name}"] = (field.number, field.label, field.type, type_name, oneof)
        for nested in kind.nested_type:
            message(f"{name}.", nested)
        for nested_enum in kind.enum_type:
            enum(f"{name}.", nested_enum)

    for top in file.message_type:
        message("", top)
    for top_enum in file.enum_type:
        enum("", top_enum)
    return found


def _file_of(module: object) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]
    return file


@needs_grpc_client
def test_every_message_field_number_and_enum_is_that_of_tritons_own_client() -> None:
    theirs_module = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    ours, theirs = _describe(_file_of(model_config_pb2)), _describe(_file_of(theirs_module))
    for name in list(ours):
        if name.startswith(f"{_PARAMETERS}.Parameter"):
            ours[name.replace(".Parameter", ".ParametersEntry", 1)] = ours.pop(name)
    field = f"{_PARAMETERS}.parameters"
    ours[field] = tuple(
        f"{_PARAMETERS}.ParametersEntry" if part == f"{_PARAMETERS}.Parameter" else part for part in ours[field]
    )
    assert ours == theirs


_OURS = "from repoagent.config import ModelConfig, read_text; assert read_text('name: \"m\"').name == 'm'"
_THEIRS = (
    "import tritonclient.grpc as g; from tritonclient.grpc import model_config_pb2 as p; assert p.ModelConfig(name='m')"
)


@pytest.mark.slow
@needs_grpc_client
@pytest.mark.parametrize("order", [(_OURS, _THEIRS), (_THEIRS, _OURS)], ids=["ours_first", "theirs_first"])
def test_our_schema_and_tritons_client_load_in_one_process_in_either_order(order: tuple[str, str]) -> None:
    subprocess.run([sys.executable, "-c", "; ".join(order)], check=True, capture_output=True)


@needs_grpc_client
def test_bytes_written_by_tritons_client_are_read_with_agent_parameters_in_order() -> None:
    theirs = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    agent = theirs.ModelRepositoryAgents.Agent(name="checksum", parameters={"MD5:1/model.py": "00"})
    config = theirs.ModelConfig(name="m", model_repository_agents=theirs.ModelRepositoryAgents(agents=[agent]))
    ours = repoagent.config.ModelConfig.FromString(config.SerializeToString())
    assert repoagent.config.agent_entries(ours)[0].parameters == (("MD5:1/model.py", "00"),)


def test_the_generated_code_belongs_to_the_proto_file() -> None:
    """Names and numbers of the .proto text, against those in the generated descriptor (`make proto` renews it)."""
    text = Path(repoagent.config.__file__).with_name("model_config.proto").read_text()
    code = re.sub(r"//.*", "", text)
    declared = sorted(re.findall(r"(\w+) = (\d+);", code))
    generated = []
    for name, what in _describe(_file_of(model_config_pb2)).items():
        if isinstance(what, dict):
            generated += [(value, str(number)) for value, number in what.items()]
        elif isinstance(what, tuple) and not re.search(r"Entry\.(key|value)$", name):
            generated.append((name.rpartition(".")[2], str(what[0])))
    assert declared == sorted(generated)


def test_a_package_of_our_own_keeps_out_of_the_way_of_other_clients() -> None:
    assert model_config_pb2.DESCRIPTOR.package == "repoagent.config"
    assert model_config_pb2.DESCRIPTOR.name == "repoagent/config/model_config.proto"


def test_a_copy_has_the_same_content_and_a_life_of_its_own() -> None:
    config = repoagent.config.read_text('name: "m"')
    duplicate = repoagent.config.copy(config)
    duplicate.name = "other"
    assert config.name == "m"
