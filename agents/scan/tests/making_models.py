"""Models made with the libraries that make them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def onnx_model(*nodes: onnx.NodeProto, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
    """A model of ``nodes`` (an Identity if there are none) with the operator sets that they name."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    made = list(nodes) or [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(made, "g", [value], [result])
    domains = {node.domain for node in made} | {function.domain for function in functions}
    opsets = [helper.make_opsetid(domain, 1 if domain else 21) for domain in sorted(domains | {""})]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def with_external_data(location: str, size: int = 16) -> bytes:
    """A model whose one weight are the first ``size`` bytes of the file ``location``."""
    model = onnx_model()
    weight = numpy_helper.from_array(np.zeros(size, np.uint8), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(size)}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    model.graph.initializer.append(weight)
    return model.SerializeToString()


def safetensors(tail: bytes = b"", header: bytes | None = None) -> bytes:
    """One tensor of eight bytes, in the layout that the format's documentation gives."""
    text = header or b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}'
    return len(text).to_bytes(8, "little") + text + bytes(8) + tail
