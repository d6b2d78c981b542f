"""GPU providers of ONNX Runtime, as far as a machine without a GPU shows: choice, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from repoagent.config import normalize, read_text
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.onnxruntime import session
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.backends.onnxruntime.session import Choice, GpuProviders, check_used, open_session
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.tensor import Tensor

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"


def _config(accelerators: str = "") -> Any:
    text = f"optimization {{ execution_accelerators {{ {accelerators} }} }}" if accelerators else ""
    return read_text(f'name: "m" {text}')


def _accelerator(name: str, **parameters: str) -> str:
    listed = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in parameters.items())
    return f'gpu_execution_accelerator {{ name: "{name}" {listed} }}'


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """An ONNX Runtime that claims more providers and lists two GPUs for each."""

    def claim(*names: str) -> None:
        gpu = SimpleNamespace(type=onnxruntime.OrtHardwareDeviceType.GPU)
        devices = [SimpleNamespace(ep_name=name, device=gpu) for name in names for _ in range(2)]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*names, "CPUExecutionProvider"])
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices)

    return claim


def test_this_onnxruntime_has_no_gpu() -> None:
    assert list(OnnxRuntimeBackend().gpus()) == []
    with pytest.raises(UnsupportedError, match="model 'm' asks for a GPU, but this ONNX Runtime runs on the CPU only"):
        GpuProviders().choose(_config(), 0, "d")


def test_a_gpu_provider_makes_gpus(built_in: Any) -> None:
    built_in(TENSORRT, CUDA)
    assert list(OnnxRuntimeBackend().gpus()) == [0, 1]


def test_without_an_accelerator_cuda_is_chosen(built_in: Any) -> None:
    built_in(TENSORRT, CUDA)
    assert GpuProviders().choose(_config(), 1, "d") == [Choice(CUDA, {"device_id": "1"})]


def test_an_accelerator_comes_first_and_cuda_takes_the_rest(built_in: Any, tmp_path: Path) -> None:
    built_in(TENSORRT, CUDA)
    asked = _config(_accelerator("tensorrt", max_workspace_size_bytes="1000"))
    first, second = GpuProviders(cache=tmp_path / "engines").choose(asked, 0, "abc")
    place = tmp_path / "engines/abc"
    assert (first.name, second) == (TENSORRT, Choice(CUDA, {"device_id": "0"}))
    assert first.options["trt_max_workspace_size"] == "1000"
    assert first.options["trt_engine_cache_path"] == str(place)
    assert place.stat().st_mode & 0o077 == 0


def test_an_accelerator_that_is_not_here_is_refused_with_those_that_are(built_in: Any) -> None:
    built_in(CUDA)
    with pytest.raises(UnsupportedError, match=f"accelerator 'nv_tensorrt_rtx', and this ONNX Runtime has {CUDA}"):
        GpuProviders().choose(_config(_accelerator("nv_tensorrt_rtx")), 0, "d")


@pytest.mark.parametrize(
    "parameter",
    ["trt_extra_plugin_lib_paths", "trt_engine_cache_path", "trt_engine_hw_compatible", "trt_dump_ep_context_model"],
)
def test_a_model_cannot_name_libraries_to_load_or_files_to_write(built_in: Any, parameter: str) -> None:
    built_in(TENSORRT)
    with pytest.raises(InvalidArgumentError, match=f"'{parameter}' is not a parameter that a model may give"):
        GpuProviders().choose(_config(_accelerator("tensorrt", **{parameter: "/tmp/x"})), 0, "d")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_falls_back_to_the_cpu_is_refused(built_in: Any, memory_files: Any, add_constant: Any) -> None:
    built_in(CUDA)  # which this build does not have: ONNX Runtime goes on without it
    backend, files = OnnxRuntimeBackend(), memory_files({"1/model.onnx": add_constant(1.0)})
    config = normalize(read_text('backend: "onnxruntime"'), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    config = normalize(config, gpus=backend.gpus())
    assert list(config.instance_group[0].gpus) == [0, 1]
    with pytest.raises(UnsupportedError, match=f"model 'm' does not run on {CUDA}: ONNX Runtime could not make use"):
        backend.load(config, files, 1)


def test_a_group_on_the_cpu_stays_there(built_in: Any, memory_files: Any, add_constant: Any) -> None:
    built_in(CUDA)
    backend, files = OnnxRuntimeBackend(), memory_files({"1/model.onnx": add_constant(1.0)})
    config = normalize(read_text('backend: "onnxruntime" instance_group { kind: KIND_CPU }'), model_name="m")
    backend.auto_complete(config, files, 1)
    one = backend.load(config, files, 1).create_instance(InstanceSpec("m_0", "CPU"))
    assert one.run({"x": Tensor.of(np.zeros((1, 4), np.float32))}, ())["y"].array.tolist() == [[1, 1, 1, 1]]


# -- providers in libraries ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_registered", {})


def test_a_library_that_cannot_be_loaded_is_refused_with_the_reason(tmp_path: Path) -> None:
    library = tmp_path / "libprovider.so"
    library.write_bytes(b"not a library")
    backend = OnnxRuntimeBackend({"provider-library": f"MyProvider={library}"})
    with pytest.raises(UnsupportedError, match=r"the provider MyProvider cannot be loaded: .*libprovider\.so"):
        backend.gpus()


def test_a_library_is_registered_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", lambda *given: calls.append(given))
    libraries = {"MyProvider": Path("/lib/one.so")}
    assert [GpuProviders(libraries).names for _ in range(3)] == [["MyProvider"]] * 3
    assert calls == [("MyProvider", "/lib/one.so")]
    with pytest.raises(UnsupportedError, match=r"was loaded from /lib/one\.so, and cannot be from /lib/two\.so"):
        GpuProviders({"MyProvider": Path("/lib/two.so")}).gpus()


def test_a_library_under_another_name_than_its_providers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime takes any name for the library, and lists devices under the provider's own."""
    devices: list[Any] = []
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: list(devices))
    monkeypatch.setattr(
        onnxruntime,
        "register_execution_provider_library",
        lambda *_: devices.append(SimpleNamespace(ep_name="ItsProvider")),
    )
    with pytest.raises(UnsupportedError, match=r"has the provider ItsProvider, not rtx: .*library=ItsProvider=/lib/"):
        GpuProviders({"rtx": Path("/lib/one.so")}).gpus()


def test_a_library_that_finds_no_device_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", lambda *_: None)
    assert list(GpuProviders({"MyProvider": Path("/lib/one.so")}).gpus()) == []
    assert "the provider MyProvider finds no device that it could use on this machine" in caplog.text


def test_a_real_library_runs_a_model(monkeypatch: pytest.MonkeyPatch, memory_files: Any, add_constant: Any) -> None:
    """A provider for the CPU passes for one of a GPU: registered, chosen by its device, checked, run."""
    package = pytest.importorskip("nxrt_ep_cpu", reason="install nxrt-ep-cpu (a pre-release) for a plug-in provider")
    cpu = onnxruntime.OrtHardwareDeviceType.CPU
    monkeypatch.setattr(onnxruntime, "OrtHardwareDeviceType", SimpleNamespace(GPU=cpu, CPU=cpu))
    backend = OnnxRuntimeBackend({"provider-library": f"cpu_ep={package.get_library_path()}"})
    files = memory_files({"1/model.onnx": add_constant(1.0)})
    config = normalize(read_text('backend: "onnxruntime"'), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    model = backend.load(normalize(config, gpus=backend.gpus()), files, 1)
    one = model.create_instance(InstanceSpec("m_0", "GPU"))
    assert one._session.get_providers()[0] == "cpu_ep"
    assert one.run({"x": Tensor.of(np.zeros((1, 4), np.float32))}, ())["y"].array.tolist() == [[1, 1, 1, 1]]


def test_devices_of_a_library_reach_the_session(memory_files: Any, add_constant: Any) -> None:
    """With a provider that is here, in the way of those that come in libraries."""
    (device,) = (one for one in onnxruntime.get_ep_devices() if one.ep_name == "CPUExecutionProvider")
    files = memory_files({"1/model.onnx": add_constant(1.0)})
    choice = Choice("CPUExecutionProvider", {}, (device,))
    session = open_session(_config(), files, 1, onnxruntime.SessionOptions(), [choice]).session
    check_used(_config(), session, [choice])
    (array,) = session.run(["y"], {"x": np.zeros((1, 4), np.float32)})
    assert array.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("text", ["MyProvider", "=/lib/one.so", "MyProvider=one.so"])
def test_a_setting_that_names_no_library_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="provider-library must be NAME=PATH with an absolute path"):
        OnnxRuntimeBackend({"provider-library": text})
