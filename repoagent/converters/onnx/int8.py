"""ONNX to ONNX with weights of eight bits: a quarter of the size, and faster where the processor has such products."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.converters.onnx.source import (
    OnnxModel,
    has_vnni,
    public_error,
    refuse_other_backend,
    runtime_version,
    serve_with_onnx_runtime,
)
from repoagent.converters.option_values import choice, file_name, truth
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.installing import install_hint

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_AUTO: Final = "auto"
_QUANTIZED: Final = frozenset(
    {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM", "DequantizeLinear", "QGemm"}
)


class Int8Converter:
    """ONNX Runtime's dynamic quantisation: weights are rounded now, activations while the model runs."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "weights": ConverterOption("int8", "the type of the weights: int8, or uint8"),
        "per_channel": ConverterOption("false", "true: a scale for every output of a layer, which is closer"),
        "reduce_range": ConverterOption(
            _AUTO, "true: seven bits, for processors that add products in 16 bits; auto: what this machine needs"
        ),
        "output": ConverterOption(None, "the name of the result; that of the model unless given"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        if find_spec("onnx") is None:
            raise UnsupportedError(f"int8 needs the package onnx; {install_hint('repoagent-core', 'onnx')}")
        refuse_other_backend(source.config)
        model = OnnxModel.find(source)
        weights = choice(options, "weights", ["int8", "uint8"])
        reduce_range = choice(options, "reduce_range", [_AUTO, "true", "false"])
        output = file_name(options, "output") or model.place
        settings = {
            "input": model.path,
            "output": output,
            "weights": weights,
            "per_channel": truth(options, "per_channel"),
            "reduce_range": not has_vnni() if reduce_range == _AUTO else reduce_range == "true",
            "external": model.writes_external,
        }
        tools = {"onnxruntime": runtime_version()}
        return ConversionPlan(model.parts, output, settings, tools, "any", model.replaced)

    def build(self, job: ConversionJob) -> Product:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        job.progress(0, None, "rounding weights")
        options = job.settings
        model, result = job.source / options["input"], job.target / options["output"]
        try:
            quantize_dynamic(
                model,
                result,
                per_channel=options["per_channel"],
                reduce_range=options["reduce_range"],
                weight_type=QuantType.QInt8 if options["weights"] == "int8" else QuantType.QUInt8,
                use_external_data_format=options["external"],
            )
            layers = _check(result)
        except InvalidArgumentError:
            raise
        except Exception as error:  # whatever the tool, onnx and ONNX Runtime raise
            text = public_error(error, model.parent, job.source, job.target)
            raise InvalidArgumentError(f"cannot be quantised: {text}") from error
        return Product({"quantized_nodes": layers}, (f"{layers} nodes compute with eight bits",))

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        serve_with_onnx_runtime(config, plan.output)


def _check(result: Path) -> int:
    """How many nodes of the result compute with eight bits; it can be loaded."""
    import onnx
    import onnxruntime as ort

    graph = onnx.load(str(result), load_external_data=False).graph
    count = sum(node.op_type in _QUANTIZED for node in graph.node if node.op_type != "DynamicQuantizeLinear")
    if not count:
        raise InvalidArgumentError(
            "has no layer with weights that int8 makes smaller (MatMul, Gemm, Conv, Gather, LSTM)"
        )
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    ort.InferenceSession(str(result), settings, ["CPUExecutionProvider"])
    return count
