"""T1: an ONNX model names files outside of itself as its weights, in every way in which a model can come."""

import hashlib
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from repoagent_llm import Executor, ExecutorConfig, ModelType

from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from tests.hostile.conftest import SECRET, NewCore

CONFIG = 'backend: "onnxruntime"\nname: "m"\n'


def stealing(location: str, *inputs: str) -> bytes:
    """A model whose output is what lies at ``location``; it looks at no input."""
    weights = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[len(SECRET)], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(SECRET)))):
        weights.external_data.add(key=key, value=value)
    output = helper.make_tensor_value_info("y", TensorProto.UINT8, [len(SECRET)])
    given = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1]) for name in inputs]
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "graph", given, [output], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


@pytest.fixture(params=["key.txt", "./key.txt", "../outside/key.txt", "sub/../key.txt", "absolute"])
def location(request: pytest.FixtureRequest, outside: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name of the key for who stands in its directory; the server does."""
    (outside.parent / "sub").mkdir()
    monkeypatch.chdir(outside.parent)
    return str(outside) if request.param == "absolute" else str(request.param)


@pytest.fixture
def model(repository: Path, location: str) -> Path:
    """A model of one file in the repository."""
    directory = repository / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(stealing(location))
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


def pinned(model: Path) -> str:
    """The strictest policy that was thought to hold: backend, platform, no agents, and the digest of the model."""
    digest = hashlib.sha256((model / "1" / "model.onnx").read_bytes()).hexdigest()
    return (
        '[[rule]]\nmodels = ["*"]\nmode = "enforce"\nbackends = ["onnxruntime"]\nplatforms = ["onnxruntime_onnx"]\n'
        f'agents = []\nbefore = [{{ agent = "checksum", parameters = {{ "SHA256:1/model.onnx" = "{digest}" }} }}]\n'
    )


def refused(core: ServingCore, name: str = "m") -> None:
    assert not core.model_ready(name)
    texts = " ".join(str(entry.get("reason")) for entry in core.index())
    assert "external data" in texts.lower()
    assert SECRET.decode() not in texts


def test_from_a_repository_at_the_start(model: Path, new_core: NewCore) -> None:
    refused(new_core(control_mode=ControlMode.NONE))


def test_found_by_polling(model: Path, new_core: NewCore, tmp_path: Path) -> None:
    model.rename(tmp_path / "elsewhere")
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    (tmp_path / "elsewhere").rename(model)
    core.poll()
    refused(core)


def test_by_a_load_request(model: Path, new_core: NewCore) -> None:
    core = new_core()
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        core.load("m")
    refused(core)


def test_with_an_overriding_configuration(model: Path, new_core: NewCore) -> None:
    core = new_core()
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        core.load("m", config='{"backend": "onnxruntime"}')
    refused(core)


def test_as_contents_sent_along(repository: Path, new_core: NewCore, location: str) -> None:
    core = new_core()
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        core.load("m", config='{"backend": "onnxruntime"}', files={"1/model.onnx": stealing(location)})
    refused(core)


def test_as_contents_sent_along_with_weights_beside_them(repository: Path, new_core: NewCore, location: str) -> None:
    core = new_core()
    files = {"1/model.onnx": stealing(location), "1/other.data": b"0" * len(SECRET)}
    with pytest.raises(RepoAgentError, match=r"(?i)external"):
        core.load("m", config='{"backend": "onnxruntime"}', files=files)
    assert not core.model_ready("m")


def test_with_another_file_beside_it(model: Path, new_core: NewCore) -> None:
    (model / "1" / "other.data").write_bytes(b"0" * len(SECRET))
    core = new_core()
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        core.load("m")
    refused(core)


def test_pinned_under_enforce(model: Path, new_core: NewCore) -> None:
    core = new_core(policy=pinned(model))
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        core.load("m")
    refused(core)


def test_by_the_first_request_for_it(model: Path, new_core: NewCore) -> None:
    core = new_core(on_demand=True)
    with pytest.raises(RepoAgentError):
        core.infer(InferRequest(Asked("m", {})))
    refused(core)


def test_as_a_member_of_an_ensemble(model: Path, location: str, new_core: NewCore) -> None:
    (model / "1" / "model.onnx").write_bytes(stealing(location, "x"))
    (model.parent / "e" / "1").mkdir(parents=True)
    (model.parent / "e" / "config.pbtxt").write_text(
        'platform: "ensemble" input [{ name: "a" data_type: TYPE_UINT8 dims: [1] }]'
        'output [{ name: "b" data_type: TYPE_UINT8 dims: [16] }]'
        'ensemble_scheduling { step [{ model_name: "m" model_version: -1 input_map { key: "x" value: "a" }'
        ' output_map { key: "y" value: "b" } }] }'
    )
    core = new_core()
    with pytest.raises(RepoAgentError):
        core.load("e")
    refused(core)


def test_through_the_convert_agent(model: Path, new_core: NewCore) -> None:
    (model / "config.pbtxt").write_text(CONFIG + 'model_repository_agents { agents [{ name: "convert" }] }\n')
    core = new_core()
    with pytest.raises(RepoAgentError):
        core.load("m")
    assert not core.model_ready("m")


def test_in_a_tensor_of_a_node(
    repository: Path, new_core: NewCore, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of a Constant can be kept outside as well as an initialiser."""
    monkeypatch.chdir(outside.parent)
    inner = onnx.load_model_from_string(stealing("key.txt"))
    weights = inner.graph.initializer.pop()
    inner.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    core = new_core()
    with pytest.raises(RepoAgentError):
        core.load("m", config='{"backend": "onnxruntime"}', files={"1/model.onnx": inner.SerializeToString()})
    assert not core.model_ready("m")


def test_a_model_with_its_own_weights_in_memory_is_served(repository: Path, new_core: NewCore) -> None:
    core = new_core()
    files = {"1/model.onnx": stealing("own.data"), "1/own.data": b"0" * len(SECRET)}
    core.load("m", config='{"backend": "onnxruntime"}', files=files)
    answer = core.infer(InferRequest(Asked("m", {})))
    assert answer.outputs["y"].array.tobytes() == b"0" * len(SECRET)


def test_a_model_with_its_own_weights_on_the_disk_is_served(
    repository: Path, new_core: NewCore, location: str, model: Path
) -> None:
    (model / "1" / "model.onnx").write_bytes(stealing("own.data"))
    (model / "1" / "own.data").write_bytes(b"0" * len(SECRET))
    core = new_core()
    core.load("m")
    assert core.infer(InferRequest(Asked("m", {}))).outputs["y"].array.tobytes() == b"0" * len(SECRET)


def test_in_the_bytes_of_an_executor(decoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that comes as bytes has no folder: a tensor of a node that lies in a file can only be someone's."""
    whole = onnx.load(str(decoder_folder / "model.onnx"))
    moved = next(item for item in whole.graph.initializer if item.data_type == TensorProto.FLOAT and len(item.dims) > 1)
    whole.graph.initializer.remove(moved)
    (tmp_path / "key.bin").write_bytes(onnx.numpy_helper.to_array(moved).tobytes())
    away = TensorProto(data_type=moved.data_type, dims=moved.dims, data_location=TensorProto.EXTERNAL)
    away.external_data.add(key="location", value="key.bin")
    whole.graph.node.insert(0, helper.make_node("Constant", [], [moved.name], value=away))
    monkeypatch.chdir(tmp_path)
    text = (decoder_folder / "genai_config.json").read_text()
    with pytest.raises(RepoAgentError, match=r"(?i)external data"):
        Executor(whole.SerializeToString(), text, ModelType.DECODER_ONLY, ExecutorConfig())
