"""Decoder folders with what other builders write: a window in the configuration, a cap on logits, notes on shapes."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def copy_folder(source: Path, target: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(source, target))


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Let ``change`` see the ``model`` of genai_config.json, and write what it makes of it."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    change(config["model"])
    path.write_text(json.dumps(config))
    return folder


def change_graph(folder: Path, change: Callable[[Any], object]) -> Path:
    """Let ``change`` see the graph, and write what it makes of it. Weights stay where they are."""
    path = folder / "model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    return folder


def cap_logits(graph: Any, cap: float) -> None:
    """``cap * tanh(logits / cap)``, as gemma-2 has it; with the shapes that onnxruntime-genai's builder notes."""
    (head,) = (node for node in graph.node if "logits" in node.output)
    (output,) = (item for item in graph.output if item.name == "logits")
    shape = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
    stem = "/lm_head"
    graph.initializer.append(numpy_helper.from_array(np.array([cap], np.float32), f"{stem}.cap"))
    names = [f"{stem}/MatMul/output_0", f"{stem}/softcap/Div/output_0", f"{stem}/softcap/Tanh/output_0"]
    head.output[0] = names[0]
    graph.node.append(helper.make_node("Div", [names[0], f"{stem}.cap"], [names[1]]))
    graph.node.append(helper.make_node("Tanh", [names[1]], [names[2]]))
    graph.node.append(helper.make_node("Mul", [names[2], f"{stem}.cap"], ["logits"]))
    graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names)


def set_windows(graph: Any, size: int, layers: Iterable[int]) -> None:
    """Let the attention of ``layers`` see so many tokens; -1: all."""
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    for layer in layers:
        (attribute,) = (item for item in nodes[layer].attribute if item.name == "local_window_size")
        attribute.i = size
