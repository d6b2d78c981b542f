"""Outputs in buffers of C programs: written there by the model where that is possible, else copied once."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

WIDTH = 1 << 15


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Models that negate a row of floats."""
    made = tmp_path / "repository"
    for name, width in (("large", WIDTH), ("batched", WIDTH), ("variable", "width"), ("small", 16)):
        _model(made / name / "1" / "model.onnx", width)
    # A batch is full with two.
    (made / "batched" / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 2\n'
        "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }\n"
    )
    return made


def _model(path: Path, width: int | str) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("batch", width)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_large_output_is_written_into_the_programs_buffer_and_any_other_is_copied_once(
    compile_c: Any, capi: Path, repository: Path, tmp_path: Path
) -> None:
    library = capi / "lib"
    flags = (f"-L{library}", "-ltritonserver", f"-Wl,-rpath,{library}", "-lpthread")
    program = compile_c.program("places.c", tmp_path / "places", *flags)
    done = subprocess.run([program, repository], capture_output=True, text=True, env={}, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "large: right 1, copied 0, allocated 1, released 1",
        "in a batch: right 2, copied 2, allocated 2, released 2",
        "of variable size: right 1, copied 1, allocated 1, released 1",
        "small: right 1, copied 1, allocated 1, released 1",
        "large again: right 1, copied 0, allocated 1, released 1",
        "unaligned: right 1, copied 1, allocated 1, released 1",
        "handles: 1",
    ], done.stderr[-3000:]
