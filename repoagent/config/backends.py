"""Which backend a configuration asks for, and how that backend's model file is called."""

from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.errors import AlreadyExistsError

#: The platform and the backend of a pipeline of other models.
ENSEMBLE: Final = "ensemble"

#: The backend behind each value that ``platform`` may have.
BACKEND_OF_PLATFORM: Final = MappingProxyType(
    {
        "tensorrt_plan": "tensorrt",
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "torch_aoti": "torch_aoti",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
        ENSEMBLE: ENSEMBLE,
    }
)

#: The platform that a model of the backend gets when its configuration has none; other backends have no platform.
PLATFORM_OF_BACKEND: Final = MappingProxyType(
    {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
)

MODEL_FILENAMES_GROUP: Final = "repoagent.model_filenames"
"""Entry points of backends that are packages of their own: ``FILE = "BACKEND"``, or ``FILE = "BACKEND:FORMAT"``.

FILE is the name of the backend's model file, FORMAT what converters call it. Nothing is imported.
"""

_OWN_FILENAMES: Final = MappingProxyType(
    {
        "tensorrt": "model.plan",
        "onnxruntime": "model.onnx",
        "openvino": "model.xml",
        "pytorch": "model.pt",
        "torch_aoti": "model.pt2",
        "python": "model.py",
    }
)


@cache
def _installed_filenames() -> Mapping[str, tuple[str, str]]:
    """Model file -> backend and format, of the packages that are installed."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[str, str]] = {}
    for point in sorted(entry_points(group=MODEL_FILENAMES_GROUP), key=lambda one: one.name):
        if point.name in {*_OWN_FILENAMES.values(), *found} or point.module in _OWN_FILENAMES:
            raise AlreadyExistsError(
                f"the entry point '{point.name}' of {MODEL_FILENAMES_GROUP} ({point.value}) takes a model file or a "
                "backend that has an owner; uninstall the package that offers it"
            )
        found[point.name] = (point.module, point.attr or "")
    return MappingProxyType(found)


@cache
def model_filenames() -> Mapping[str, str]:
    """The model's file in a version directory, by backend. The order is the one in which a directory is searched.

    Backends of other packages come first: beside their files may lie a ``model.onnx`` that only they can run.
    """
    others = {backend: filename for filename, (backend, _) in _installed_filenames().items()}
    return MappingProxyType({**others, **_OWN_FILENAMES})


def converter_format(names: Collection[str]) -> tuple[str, str] | None:
    """The model file among ``names`` that a package offers a backend for, and what converters call its format."""
    known = ((filename, form) for filename, (_, form) in _installed_filenames().items() if form and filename in names)
    return next(known, None)


_SKLEARN: Final = "write it with skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})"
_BOOSTER: Final = 'name the agent: model_repository_agents { agents { name: "convert" } }'
_KERAS: Final = f"a Keras model: {_BOOSTER}, or write it with model.export('model.onnx', format='onnx')"
_SAVED: Final = f"a TensorFlow SavedModel: {_BOOSTER}, or convert it with 'python -m tf2onnx.convert'"
_TORCH: Final = "a PyTorch model: write it with torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)"
_WAYS: Final = MappingProxyType(
    {
        "MLmodel": "an MLflow model: serve the file of its flavor, converted to ONNX",
        "saved_model.pb": _SAVED,
        "model.savedmodel": _SAVED,
        "model.txt": f"a LightGBM model: {_BOOSTER}",
        "model.json": f"an XGBoost model: {_BOOSTER}",
        ".keras": _KERAS,
        ".h5": _KERAS,
        ".pt": _TORCH,
        ".pth": _TORCH,
        ".pt2": "a PyTorch program: write it with torch.onnx.export(program, f='model.onnx')",
        ".skops": f"a scikit-learn model: {_SKLEARN}",
        ".joblib": f"a pickle, as of scikit-learn: {_SKLEARN}",
        ".pkl": f"a pickle, as of scikit-learn: {_SKLEARN}",
        ".pickle": f"a pickle, as of scikit-learn: {_SKLEARN}",
        ".ubj": f"an XGBoost model: {_BOOSTER}",
        ".bst": f"an XGBoost or LightGBM model: {_BOOSTER}",
        ".lgb": f"a LightGBM model: {_BOOSTER}",
        ".cbm": "a CatBoost model: write it with model.save_model('model.onnx', format='onnx')",
        ".gguf": "a GGUF file: name the agent 'convert' with the parameter to = decoder",
        ".onnx": "an ONNX model under another name: call it model.onnx, or set default_model_filename",
    }
)
"""What a file, by its name or its ending, is of, and what its user can do where no backend runs it."""


def is_checkpoint(names: Collection[str]) -> bool:
    """Whether a directory with files of these names holds a checkpoint of Hugging Face."""
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


def way_out(names: Collection[str]) -> str:
    """What a message states of a directory with files of these names that no backend runs: what they are, what to do.

    Empty where none of them is known.
    """
    if is_checkpoint(names):
        return "a checkpoint, which no backend runs as it is: name the agent 'convert' with the parameter to = decoder"
    for known, way in _WAYS.items():
        ending = known if known.startswith(".") else f"/{known}"
        found = next((name for name in names if f"/{name}".endswith(ending)), None)
        if found is not None:
            return f'{way} ({found}; docs/reference/converters.md, "Models of other frameworks")'
    return ""


def backend_of(config: ModelConfig) -> str:
    """The name of the backend, from ``backend``, else ``platform``, else ``default_model_filename``.

    Empty when none of them names it: then the files of the model decide (see :func:`~repoagent.config.normalize`).
    """
    if config.backend:
        return config.backend
    if config.platform:
        return BACKEND_OF_PLATFORM.get(config.platform, "")
    named = (backend for backend, name in model_filenames().items() if name == config.default_model_filename)
    return next(named, "")


def executed_by(config: ModelConfig) -> str:
    """The backend that executes a model of this configuration: that of :func:`backend_of`, or "ensemble".

    A pipeline is one whatever else the configuration names, because the server treats it as one.
    """
    if config.HasField("ensemble_scheduling") or ENSEMBLE in (config.platform, config.backend):
        return ENSEMBLE
    return backend_of(config)


def platform_of(config: ModelConfig) -> str:
    """The platform that follows from the backend of ``config``; the backend's name where it has no platform.

    Empty when the backend is not known yet. A ``platform`` in the configuration counts only if it is one of that
    backend: ``backend: "python" platform: "onnxruntime_onnx"`` is of the platform "python".
    """
    backend = executed_by(config)
    if not backend or (config.platform and BACKEND_OF_PLATFORM.get(config.platform) == backend):
        return config.platform
    return PLATFORM_OF_BACKEND.get(backend, backend)


def model_filename(config: ModelConfig) -> str:
    """The name of the model's file in each version directory; empty for a backend whose file name is not known."""
    return config.default_model_filename or model_filenames().get(backend_of(config), "")
