"""Load an ONNX model of more than 2 GiB that is only in memory, and look up what is at the end of its weights.

    python benchmarks/external_data.py [--gib 2.5]

It needs a little more than twice that much memory: the file's content and ONNX Runtime's copy. Nothing is written.
Each tensor is below 2 GiB: a larger one ONNX Runtime takes only from a file on a disk.
"""

import time
from pathlib import Path

import numpy as np
from measures import options_of, status_bytes
from onnx import TensorProto, helper

from repoagent.config import normalize, read_text
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import MemoryFiles

WIDTH = 256
TABLES = 4


def external_table(index: int, rows: int) -> TensorProto:
    """A tensor FP32[rows, WIDTH] that lies in ``weights.bin``, behind those with a lower index."""
    length = rows * WIDTH * 4
    table = TensorProto(name=f"table{index}", data_type=TensorProto.FLOAT, dims=[rows, WIDTH])
    table.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": str(index * length), "length": str(length)}.items():
        table.external_data.add(key=key, value=value)
    return table


def table_model(rows: int) -> bytes:
    """``y`` is the sum of the rows ``x`` of all tables."""
    tables = [external_table(index, rows) for index in range(TABLES)]
    graph = helper.make_graph(
        [
            *(helper.make_node("Gather", [table.name, "x"], [f"row{index}"]) for index, table in enumerate(tables)),
            helper.make_node("Sum", [f"row{index}" for index in range(TABLES)], ["y"]),
        ],
        "lookup",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        tables,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def refuse() -> Path:
    raise AssertionError("the model was about to be written to a disk")


def main() -> None:
    rows = int(options_of(__doc__, gib=2.5).gib * 2**30) // (WIDTH * 4 * TABLES)
    weights = np.zeros((TABLES * rows, WIDTH), np.float32)
    weights[rows - 1 :: rows] = [[1], [2], [4], [8]]
    files = MemoryFiles({"1/model.onnx": table_model(rows), "1/weights.bin": weights.tobytes()}, refuse)
    size = weights.nbytes
    del weights
    backend, config = OnnxRuntimeBackend(), normalize(read_text('backend: "onnxruntime"'), model_name="lookup")
    start = time.perf_counter()
    backend.auto_complete(config, files, 1)
    runner = backend.load(config, files, 1).create_instance(InstanceSpec("lookup", "CPU"))
    seconds = time.perf_counter() - start
    answer = runner.run({"x": Tensor.of(np.array([rows - 1]))}, ())["y"].array
    assert (answer == 15).all()
    most = status_bytes("VmHWM") / 2**30  # ru_maxrss would begin with the memory of whatever started this
    print(f"{size / 2**30:.2f} GiB of weights loaded from memory in {seconds:.1f} s; peak resident {most:.1f} GiB")


if __name__ == "__main__":
    main()
