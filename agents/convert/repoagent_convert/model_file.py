"""What converters of one model file to ONNX share: the plan, and the configuration that serves the result."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
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
from repoagent.converters.onnx.source import public_error, refuse_other_backend, serve_with_onnx_runtime
from repoagent.converters.option_values import file_name

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

OUTPUT: Final = "model.onnx"
LARGEST_FILE: Final = 1 << 30
LARGEST_BATCH: Final = 1024
"""The rows of a request that a model without a configuration takes."""
_MOST_TENSORS: Final = 10_000
TYPES: Final[Mapping[int, str]] = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
"""Type of elements in ONNX -> the same in a configuration, without its ``TYPE_``."""


class FileConverter(ABC):
    """A converter of one model file to ONNX; see :class:`repoagent.api.Converter`.

    ``build`` reports the tensors of the result as :func:`produced` has them, in the annotations ``inputs`` and
    ``outputs``. The annotation ``batch`` is the most rows of a request, 0 where the first dimension is not one of rows;
    without it, :data:`LARGEST_BATCH`.
    """

    version: ClassVar[str]
    title: ClassVar[str]
    in_child = True
    largest: ClassVar[int] = LARGEST_FILE
    options: Mapping[str, ConverterOption] = {"output": ConverterOption(OUTPUT, "the name of the result")}

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        self.check(source.config)
        if not (source.directory / source.name).is_file():
            raise InvalidArgumentError(f"{source.label}: no such file; the parameter 'input' names the model file")
        if not self.accepts(source):
            raise InvalidArgumentError(f"{source.label}: does not begin as a model of {self.title}")
        files, replaces = self.files(source)
        if sum(status_beneath(source.directory, name, follow=False).st_size for name in files) > self.largest:
            raise UnsupportedError(f"{source.label}: has more than {self.largest} bytes")
        settings = {
            "input": source.name,
            "output": file_name(options, "output") or OUTPUT,
            **self.settings(options),
        }
        return ConversionPlan(files, settings["output"], settings, replaces=replaces)

    def accepts(self, source: ConversionSource) -> bool:
        """Whether the file may be of this format."""
        return recognized(self, source.directory, source.name)

    def check(self, config: "ModelConfig | None") -> None:
        """Refuse a model whose configuration has a backend that does not run the result.

        Raises:
            InvalidArgumentError: it has.
        """
        refuse_other_backend(config)

    def files(self, source: ConversionSource) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The files that are read, and the files and folders that the result stands in for."""
        return (source.name,), (source.name,)

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
        batch = product.annotations.get("batch", LARGEST_BATCH)
        if type(batch) is not int or not 0 <= batch <= LARGEST_BATCH:
            raise InternalError("the converter reports a batch that cannot be configured")
        if config.max_batch_size and not batch:
            raise InvalidArgumentError(
                f"max_batch_size is {config.max_batch_size}, but the first dimension of the model is not one of rows "
                "that are answered each for itself; set it to 0"
            )
        if not (config.max_batch_size or config.input or config.output):
            config.max_batch_size = batch
        for place, tensors in ((config.input, "inputs"), (config.output, "outputs")):
            if place or (batch and not config.max_batch_size):
                continue
            for one in _checked(product.annotations.get(tensors)):
                item = place.add(name=one["name"], data_type=DataType.Value(one["type"]), dims=one["dims"] or [1])
                if not one["dims"] and batch:
                    item.reshape.SetInParent()


def _checked(tensors: Any) -> list[dict[str, Any]]:
    """What a build reports of its tensors, which may have been taken over by what it read.

    Raises:
        InternalError: it is something else.
    """
    try:
        assert len(tensors) <= _MOST_TENSORS
        for one in tensors:
            assert isinstance(one["name"], str)
            assert one["type"].removeprefix("TYPE_") in TYPES.values()
            assert all(type(size) is int and -1 <= size < 1 << 40 for size in one["dims"])
    except (AssertionError, AttributeError, KeyError, TypeError) as error:
        raise InternalError("the converter reports tensors that cannot be configured") from error
    return list(tensors)


def produced(job: Any, model: Any, notes: Iterable[str], batch: int = LARGEST_BATCH) -> Product:
    """Write the result, and report its tensors; ``batch`` is that of the annotation."""
    (job.target / job.settings["output"]).write_bytes(model.SerializeToString())
    inputs, outputs = (_described(place, batch) for place in (model.graph.input, model.graph.output))
    return Product({"inputs": inputs, "outputs": outputs, "batch": batch}, tuple(notes))


def _described(tensors: Any, batch: int) -> list[dict[str, Any]]:
    """The tensors of a graph as a configuration has them: without the first dimension where it is that of a batch."""
    return [
        {
            "name": one.name,
            "type": f"TYPE_{TYPES[one.type.tensor_type.elem_type]}",
            "dims": [dim.dim_value or -1 for dim in one.type.tensor_type.shape.dim][bool(batch) :],
        }
        for one in tensors
    ]


def answered(opened: Any, rows: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime answers to ``rows``, by input. Raises ``UnsupportedError``: it fails."""
    try:
        return list(opened.run(None, rows))
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime does not run the graph: {public_error(error)}") from error


def session(content: bytes) -> Any:
    """ONNX Runtime with a graph that a library made, on one thread.

    Raises:
        UnsupportedError: it does not take the graph.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime does not take the graph that was made: {public_error(error)}") from error
