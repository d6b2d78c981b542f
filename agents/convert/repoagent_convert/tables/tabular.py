"""What the converters of tables' models share: their options, the names of tensors, and how answers are compared."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from repoagent.api import (
    ConversionPlan,
    ConversionSource,
    ConverterOption,
    InternalError,
    InvalidArgumentError,
    Product,
    UnsupportedError,
    recognized,
    status_beneath,
)
from repoagent.converters.onnx.source import refuse_other_backend, serve_with_onnx_runtime
from repoagent.converters.option_values import choice, file_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from repoagent.api import ModelConfig

OUTPUT: Final = "model.onnx"
LARGEST_FILE: Final = 1 << 30
ROWS: Final = 256
"""How many rows a conversion is compared on."""
_BATCH: Final = 1024
"""The rows of a request that a model without a configuration takes."""
_TOLERANCE: Final = 1e-4
_CLOSE: Final = 1e-6
_MOST_TENSORS: Final = 10_000
_CONFIG_TYPES: Final = {1: "TYPE_FP32", 7: "TYPE_INT64", 8: "TYPE_STRING", 11: "TYPE_FP64"}
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "repoagent": {name: name for name in ("input", "prediction", "label", "probabilities", "scores")},
    "triton-fil": {"input": "input__0", "prediction": "output__0", "probabilities": "output__0"},
    "mlserver": {"input": "input", "prediction": "predict", "label": "predict", "probabilities": "predict_proba"},
}
"""Whose clients find the tensors that they know -> the names of these; one without a name is left out."""


class TabularConverter(ABC):
    """A converter of one model file to ONNX; see :class:`repoagent.api.Converter`."""

    version: ClassVar[str]
    title: ClassVar[str]
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "names": ConverterOption("repoagent", f"what the tensors are called: those of {', '.join(NAMES)}"),
        "input_type": ConverterOption("fp32", "fp64: the input takes doubles, as NumPy and pandas have them"),
        "output": ConverterOption(OUTPUT, "the name of the result"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        refuse_other_backend(source.config)
        if not (source.directory / source.name).is_file():
            raise InvalidArgumentError(f"{source.label}: no such file; the parameter 'input' names the model file")
        if not recognized(self, source.directory, source.name):
            raise InvalidArgumentError(f"{source.label}: does not begin as a model of {self.title}")
        if status_beneath(source.directory, source.name, follow=False).st_size > LARGEST_FILE:
            raise UnsupportedError(f"{source.label}: has more than {LARGEST_FILE} bytes")
        settings = {
            "input": source.name,
            "output": file_name(options, "output") or OUTPUT,
            "names": choice(options, "names", NAMES),
            "double": choice(options, "input_type", ("fp32", "fp64")) == "fp64",
            **self.settings(options),
        }
        return ConversionPlan((source.name,), settings["output"], settings, replaces=(source.name,))

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """What ``build`` gets of the converter's own options."""
        return {}

    @abstractmethod
    def build(self, job: Any) -> Product:
        """See :class:`repoagent.api.Converter`."""

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`. What the configuration has stays."""
        from repoagent.config.model_config_pb2 import DataType

        serve_with_onnx_runtime(config, plan.output)
        if not (config.max_batch_size or config.input or config.output):
            config.max_batch_size = _BATCH
        for place, tensors in ((config.input, "inputs"), (config.output, "outputs")):
            if place or not config.max_batch_size:
                continue
            for one in _checked(product.annotations.get(tensors)):
                place.add(name=one["name"], data_type=DataType.Value(one["type"]), dims=one["dims"])


def _checked(tensors: Any) -> list[dict[str, Any]]:
    """What a build reports of its tensors, which may have been taken over by what it read.

    Raises:
        InternalError: it is something else.
    """
    try:
        assert len(tensors) <= _MOST_TENSORS
        for one in tensors:
            assert isinstance(one["name"], str)
            assert one["type"] in _CONFIG_TYPES.values()
            assert all(type(size) is int and -1 <= size < 1 << 40 for size in one["dims"])
    except (AssertionError, KeyError, TypeError) as error:
        raise InternalError("the converter reports tensors that cannot be configured") from error
    return list(tensors)


def described(tensors: Any) -> list[dict[str, Any]]:
    """The tensors of a graph as a configuration has them, without the dimension of the batch."""
    return [
        {
            "name": one.name,
            "type": _CONFIG_TYPES[one.type.tensor_type.elem_type],
            "dims": [dim.dim_value or -1 for dim in one.type.tensor_type.shape.dim[1:]],
        }
        for one in tensors
    ]


def closeness(found: "npt.NDArray[Any]", wanted: "npt.NDArray[Any]") -> "tuple[float, npt.NDArray[np.bool_]]":
    """The largest difference between numbers, and which of them are small beside their numbers."""
    import numpy as np

    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    size = np.abs(wanted)
    differences = np.abs(found - wanted)
    with np.errstate(invalid="ignore"):
        allowed = _TOLERANCE * np.maximum(size, np.median(size)) + _CLOSE * size.max()
    is_close = (found == wanted) | (differences <= allowed)
    return float(np.nan_to_num(differences, nan=0.0 if is_close.all() else np.inf).max()), is_close
