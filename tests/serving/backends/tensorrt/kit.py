"""Plans of the stand-in, and runners over them and over ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repoagent.config import ModelConfig, normalize, read_text
from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend, TensorRtModel
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.storage.files.files import MemoryFiles
from tests.engines.platforms import content_of, new_platform
from tests.engines.standin import StandInPlan

GPU = InstanceSpec("m_0", "GPU")
_opened: list[Any] = []


def rows(least: int, most: int, **dims: Sequence[int]) -> Profile:
    """A profile for batches of so many rows; the rest of each input's shape."""
    return Profile({name: ShapeRange((least, *rest), (most, *rest), (most, *rest)) for name, rest in dims.items()})


def plan(
    model: bytes, *profiles: Profile, on_host: Sequence[str] = (), aliases: Mapping[str, str] | None = None
) -> bytes:
    """A plan of the stand-in."""
    return content_of(StandInPlan(model, profiles, frozenset(on_host), aliases or {}))


def files_of(content: bytes, name: str = "model.plan") -> MemoryFiles:
    """Version 1 of a model that is in memory only."""

    def refuse() -> Path:
        raise AssertionError("nothing here may be written to a disk")

    return MemoryFiles({f"1/{name}": content}, refuse)


def load(content: bytes, text: str = "", platform: Any = None) -> tuple[ModelConfig, TensorRtModel]:
    """The plan as the server loads it, the configuration completed from it."""
    backend, files = TensorRtBackend(platform=platform or new_platform()), files_of(content)
    config = normalize(read_text('backend: "tensorrt" ' + text), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    config = normalize(config, gpus=backend.gpus()[:1])
    model = backend.load(config, files, 1)
    create = model.create_instance

    def recorded(spec: InstanceSpec) -> TensorRtRunner:
        _opened.append(create(spec))
        made: TensorRtRunner = _opened[-1]
        return made

    _opened.append(model)
    model.create_instance = recorded  # type: ignore[method-assign]
    return config, model


def close_all() -> None:
    """Close what was loaded, instances before their models."""
    while _opened:
        _opened.pop().close()


def runner(content: bytes, text: str = "", platform: Any = None) -> TensorRtRunner:
    """An instance of it."""
    return load(content, text, platform)[1].create_instance(GPU)


def through_onnxruntime(model: bytes, text: str = "") -> Any:
    """The same model on the other backend."""
    backend, files = OnnxRuntimeBackend(), files_of(model, "model.onnx")
    config = normalize(read_text('backend: "onnxruntime" ' + text), model_name="m")
    backend.auto_complete(config, files, 1)
    return backend.load(normalize(config), files, 1).create_instance(InstanceSpec("m_0", "CPU"))
