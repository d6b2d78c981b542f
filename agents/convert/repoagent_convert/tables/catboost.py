"""CatBoost to ONNX: the library writes the graph; what it is known to get wrong is mended, refused or compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import ConversionJob, InvalidArgumentError, Product, UnsupportedError
from repoagent_convert.model_file import produced
from repoagent_convert.tables.foreign_graph import Input, finished, short
from repoagent_convert.tables.tabular import ROWS, TabularConverter, rows_about

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_CLASSES: Final = frozenset({"Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll"})
_KINDS: Final = ("cat", "text", "embedding")
"""Of features, which the graph of the library lacks."""
_MEMORY: Final = 2 << 30
"""Of address space, of which the library reserves 1 GiB."""
_MEMORY_OF_A_BYTE: Final = 512
"""A leaf has 8 bytes in the file, and two nodes of the graph, which are objects of Python."""
_LOGARITHMS: Final = frozenset({"Poisson", "Tweedie"})
"""The graph of the library ends with the logarithm of the prediction."""


class CatboostConverter(TabularConverter):
    """A file of ``save_model``. Its reader is native code, so it reads in a jail where there is one."""

    version = "1"
    title = "CatBoost"
    jailed = True
    packages = ("catboost", "onnx", "onnxruntime")

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is a model of CatBoost."""
        return head[:4] == b"CBM1"

    def memory_bytes(self, size: int) -> int:
        """A damaged file of some KiB has the library allocate until there is no more."""
        return _MEMORY + size * _MEMORY_OF_A_BYTE

    def prepare(self) -> None:
        """Import what looks at the machine, before the jail."""
        import onnx  # noqa: F401

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        import catboost
        import numpy as np
        import onnx

        job.progress(0, None, f"reading {job.settings['input']}")
        try:
            model = catboost.CatBoost().load_model(str(job.source / job.settings["input"]))
            kinds = [kind for kind in _KINDS if getattr(model, f"get_{kind}_feature_indices")()]
            loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
        except Exception as error:  # whatever a library of others raises
            raise InvalidArgumentError(f"is not a model of CatBoost, or is damaged: {short(error)}") from error
        if kinds:
            raise UnsupportedError(f"cannot be converted to ONNX: features of the kind '{kinds[0]}'")
        place = Path.cwd() / "catboost.onnx"
        try:
            model.save_model(str(place), format="onnx")
        except Exception as error:
            raise UnsupportedError(f"cannot be converted to ONNX: {short(error)}") from error
        graph = onnx.load(str(place))
        place.unlink()
        _mend(graph, loss)
        width = graph.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        inputs = [Input(graph.graph.input[0].name, "fp32", width)]
        borders = [(feature, border) for feature, found in model.get_borders().items() for border in found]
        random = np.random.default_rng(0)
        rows = random.normal(size=(ROWS, width)).astype(np.float32)
        features, thresholds = np.array(borders).reshape(-1, 2).T
        rows = rows_about(features, thresholds, rows, random)
        found = [one.name for one in graph.graph.output]
        names = ("label", "probabilities") if loss in _CLASSES else ("prediction",)
        if len(names) != len(found):
            raise UnsupportedError(f"cannot be converted to ONNX: the loss '{loss}', whose graph has other outputs")
        roles = dict(zip(names, found, strict=True))
        expected = _expected(model, loss, rows)
        title = f"catboost {catboost.__version__}"
        result, compared = finished(graph, inputs, roles, {"input": rows}, expected, job.settings, title)
        return produced(job, result, (f"loss {loss or 'none'}", compared))


def _mend(graph: Any, loss: str) -> None:
    """Probabilities as a matrix instead of a mapping; predictions instead of their logarithms; our input's name."""
    from onnx import TensorProto, helper

    body = graph.graph
    for node in [one for one in body.node if one.op_type == "ZipMap"]:
        body.node.remove(node)
        (former,) = [one for one in body.output if one.name == node.output[0]]
        body.output.remove(former)
        body.output.append(helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, None))
    if loss in _LOGARITHMS:
        body.node.append(helper.make_node("Exp", [body.output[0].name], ["exp"]))
        del body.output[:]
        body.output.append(helper.make_tensor_value_info("exp", TensorProto.FLOAT, None))
    name = body.input[0].name
    body.input[0].name = "input"
    for node in body.node:
        node.input[:] = ["input" if one == name else one for one in node.input]
    if not any(one.domain == "" for one in graph.opset_import):
        graph.opset_import.append(helper.make_opsetid("", 17))


def _expected(model: Any, loss: str, rows: "Array") -> "Mapping[str, Array]":
    import numpy as np

    if loss in _CLASSES:
        label = np.asarray(model.predict(rows, prediction_type="Class", thread_count=1))
        return {"label": label, "probabilities": model.predict(rows, prediction_type="Probability", thread_count=1)}
    kind = "Exponent" if loss in _LOGARITHMS else "RawFormulaVal"
    return {"prediction": np.asarray(model.predict(rows, prediction_type=kind, thread_count=1))}
