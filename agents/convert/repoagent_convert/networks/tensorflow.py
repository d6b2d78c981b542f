"""Keras and TensorFlow's SavedModel to ONNX; tf2onnx converts, in an environment with TensorFlow."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import (
    Archive,
    ConversionJob,
    ConversionPlan,
    ConversionSource,
    ConverterOption,
    InvalidArgumentError,
    Product,
    UnsafePathError,
    UnsupportedError,
    walk_beneath,
)
from repoagent_convert.networks.network import NetworkConverter, Tensor, written
from repoagent_convert.tables.foreign_graph import short

if TYPE_CHECKING:
    import numpy.typing as npt

    from repoagent.api import ModelConfig

    Array = npt.NDArray[Any]

_OPSET: Final = 18
_SAVED: Final = ("saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets", "assets.extra")
"""What TensorFlow writes into the folder of a model."""
_EFFECTS: Final = re.compile(r".*PyFunc.*|ReadFile|WriteFile|MatchingFiles|.*(?:Reader|Dataset|Save|Restore)(?:V\d)?")
"""Operations that run Python, or open files: their graphs are more than a function of their inputs."""


class _TensorflowConverter(NetworkConverter):
    packages: tuple[str, ...] = ("tensorflow-cpu|tensorflow", "tf2onnx", "onnx", "onnxruntime")

    def prepare(self) -> None:
        """Import what looks at the machine, before the jail."""
        os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
        import tensorflow as tf  # noqa: F401
        import tf2onnx  # noqa: F401


def _built(
    job: ConversionJob,
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    title: str,
) -> Product:
    """Convert a function of tensors that returns a list of them; see :func:`written`."""
    import numpy as np
    import tensorflow as tf
    import tf2onnx

    job.progress(0, None, "converting")
    try:
        specs = [tf.TensorSpec(one.shape, _type_of(one), f"input_{number}") for number, one in enumerate(inputs)]
        traced = tf.function(function, autograph=False)
        graph = traced.get_concrete_function(*specs).graph.as_graph_def()
        found = {node.op for place in (graph.node, *(one.node_def for one in graph.library.function)) for node in place}
        if denied := sorted(filter(_EFFECTS.fullmatch, found)):
            raise UnsupportedError(f"has the operations {', '.join(denied)[:200]}, which run code or open files")
        model, _ = tf2onnx.convert.from_function(traced, specs, opset=_OPSET)
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a library of others raises
        raise UnsupportedError(f"cannot be converted to ONNX: {short(error)}") from error

    def ask(rows: "Sequence[Array]") -> "Sequence[Array]":
        return [np.asarray(one) for one in traced(*map(tf.constant, rows))]

    return written(job, model, inputs, outputs, ask, title)


def _type_of(one: Tensor) -> Any:
    import tensorflow as tf

    return tf.string if one.kind == "object" else tf.as_dtype(one.kind)


class KerasConverter(_TensorflowConverter):
    """A file of Keras, today's archive or yesterday's HDF5."""

    version = "1"
    title = "Keras"
    packages = ("keras", *_TensorflowConverter.packages)
    instead = "or write ONNX where the model is trained: model.export('model.onnx', format='onnx')"

    def recognizes(self, head: bytes) -> bool:
        """Whether a file is HDF5, of which Keras is what a server is given."""
        return head.startswith(b"\x89HDF\r\n\x1a\n")

    def recognizes_ends(self, head: bytes, tail: bytes) -> bool:
        """Whether an archive has a configuration and weights."""
        return head[:4] == b"PK\x03\x04" and b"config.json" in tail and b"model.weights.h5" in tail

    def prepare(self) -> None:
        """See :class:`SavedModelConverter`."""
        super().prepare()
        import keras  # noqa: F401

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        job.progress(0, None, f"opening {job.settings['input']}")
        model = _opened(job.source / job.settings["input"])
        import keras

        inputs, outputs = _tensors(model)

        def function(*rows: Any) -> list[Any]:
            return list(keras.tree.flatten(model(rows[0] if len(rows) == 1 else list(rows), training=False)))

        return _built(job, function, inputs, outputs, f"keras {keras.__version__}")


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        if (suffix := ".keras" if file.read(2) == b"PK" else ".h5") == ".keras":
            Archive(file, KerasConverter.largest).check()
    import keras

    if path.suffix != suffix:  # Keras looks at the name
        path = Path(shutil.copyfile(path, f"model{suffix}"))
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # whatever a library of others raises
        if "Lambda" in str(error):
            raise UnsupportedError("has a Lambda layer, whose Python code is not run; use layers of Keras") from error
        reason = str(error).rpartition("Exception encountered: ")[2].strip().partition("\n")[0][:300]
        raise InvalidArgumentError(f"cannot be opened: {reason or type(error).__name__}") from error
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise UnsupportedError(f"has no inputs of known shapes: it is a {type(model).__name__}")
    return model


def _tensors(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Names that were chosen stay; others, which count the layers of a session, become ``input_0``, ``output_0``."""
    import keras

    layers = model._flatten_layers(include_self=False)
    vocabularies = [layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)]
    most = min(vocabularies, default=0)
    inputs = [
        Tensor(name, tuple(one.shape), _kind(one.dtype), most if "int" in one.dtype else 0)
        for name, one in zip(_names("input", model.inputs), model.inputs, strict=True)
    ]
    structure = getattr(model, "_outputs_struct", None)
    names = sorted(structure) if isinstance(structure, dict) else _names("output", model.outputs)
    return inputs, [Tensor(name, tuple(one.shape)) for name, one in zip(names, model.outputs, strict=True)]


def _kind(dtype: str) -> str:
    return "object" if dtype == "string" else dtype


def _names(role: str, tensors: Sequence[Any]) -> list[str]:
    """The names of layers; those that Keras makes of their classes, and counts in a session, are none."""
    layers = [one._keras_history.operation for one in tensors]
    names = [layer.name for layer in layers]
    own = [
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", type(layer).__name__).lower() for layer in layers
    ]
    if len({*names}) < len(names) or any(
        re.fullmatch(rf"{re.escape(made)}(_\d+)?", name) for made, name in zip(own, names, strict=True)
    ):
        return [f"{role}_{number}" for number in range(len(names))]
    return names


class SavedModelConverter(_TensorflowConverter):
    """The file ``saved_model.pb`` of TensorFlow, and what is in its folder."""

    version = "1"
    title = "TensorFlow"
    instead = "or convert it yourself: python -m tf2onnx.convert --saved-model DIR --output model.onnx --opset 18"
    options = {
        **NetworkConverter.options,
        "signature": ConverterOption("serving_default", "which signature of the model is served"),
    }

    def recognizes(self, head: bytes) -> bool:
        """Whether a file begins with the version of the schema, and a graph; ONNX has a short text there."""
        return re.match(rb"\x08\x01\x12[\x80-\xff]{1,4}[\x00-\x7f]\x0a", head) is not None

    def check(self, config: "ModelConfig | None") -> None:
        """Triton's backend for it is another name of ours."""
        if config is None or "tensorflow" not in (config.backend, config.platform.removesuffix("_savedmodel")):
            super().check(config)

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`."""
        if config.backend == "tensorflow":
            config.backend = ""
        if config.platform == "tensorflow_savedmodel":
            config.platform = ""
        super().configure(config, plan, product)

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`repoagent_convert.model_file.FileConverter`."""
        return {"signature": options["signature"]}

    def files(self, source: ConversionSource) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All of the folder; where that is the version's, what TensorFlow writes.

        Raises:
            UnsafePathError: there is a link, or something else that is not a file.
        """
        folder = source.name.rpartition("/")[0]
        root = source.directory / folder
        found = []
        for name, mode, _ in walk_beneath(root, skip=lambda name: not folder and name.split("/")[0] not in _SAVED):
            if stat.S_ISREG(mode):
                found.append(f"{folder}/{name}".lstrip("/"))
            elif not stat.S_ISDIR(mode):
                raise UnsafePathError(f"{source.label.rpartition('/')[0]}/{name} is a link or a special file")
        return tuple(sorted(found)), (folder,) if folder else tuple(one for one in _SAVED if (root / one).exists())

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        plan = super().plan(source, options)
        return replace(plan, settings={**plan.settings, "files": list(plan.inputs)})

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        import tensorflow as tf

        job.progress(0, None, f"opening {job.settings['input']}")
        call = _signature(_copied(job), job.settings["signature"])
        given, answers = call.structured_input_signature[1], call.structured_outputs
        if odd := [name for name, one in (given | answers).items() if not isinstance(one, tf.TensorSpec)]:
            raise UnsupportedError(f"cannot be converted to ONNX: '{odd[0]}' is not a tensor, but has parts")
        names = sorted(given), sorted(answers)
        inputs, outputs = (
            [Tensor(name, _shape(specs[name]), _kind(specs[name].dtype.name)) for name in order]
            for specs, order in zip((given, answers), names, strict=True)
        )

        def function(*rows: Any) -> list[Any]:
            found = call(**dict(zip(names[0], rows, strict=True)))
            return [found[name] for name in names[1]]

        return _built(job, function, inputs, outputs, f"tensorflow {tf.__version__}")


def _copied(job: ConversionJob) -> Path:
    """The folder of the model, where TensorFlow may list it: in the jail, its files can only be read."""
    target = Path.cwd() / "saved"
    for name in job.settings["files"]:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(job.source / name, place)
    return target / Path(job.settings["input"]).parent


def _signature(path: Path, name: str) -> Any:
    import tensorflow as tf

    try:
        model = tf.saved_model.load(str(path))
        signatures = dict(model.signatures)
    except Exception as error:  # whatever a library of others raises
        raise InvalidArgumentError(f"cannot be opened: {short(error)}") from error
    if name not in signatures:
        known = ", ".join(signatures)[:200] or "none"
        raise InvalidArgumentError(
            f"has no signature '{name}' (there are: {known}); the parameter 'signature' names it"
        )
    signatures[name]._keep = model  # its variables live as long as it does
    return signatures[name]


def _shape(spec: Any) -> tuple[int | None, ...] | None:
    return None if spec.shape.rank is None else tuple(spec.shape)
