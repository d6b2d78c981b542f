"""A session with weights of its own: the folder may go once it is loaded."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent_llm.builder import Form, Precision
from repoagent_llm.types.executor_errors import DecoderError

from llm.tests.conftest import MakeFolder
from llm.tests.foreign import change_graph, copy_folder
from repoagent.errors import UnsafePathError


def open_executor(folder: Path, *, own_weights: bool = False) -> Executor:
    config = ExecutorConfig()
    vars(config)["runner_options"] = RunnerOptions(threads=1, spinning=False, own_weights=own_weights)
    return Executor(folder, ModelType.DECODER_ONLY, config)


def answer(executor: Executor) -> list[int]:
    (response,) = executor.await_responses(executor.enqueue_request(Request([3, 4, 5, 6], 24)))
    tokens: list[int] = response.result.output_token_ids[0]
    return tokens


@pytest.mark.parametrize(
    ("kind", "form", "precision"),
    [
        *(("llama", Form.GQA, precision) for precision in Precision if precision is not Precision.BF16),
        ("llama", Form.STD, Precision.FP32),
        ("gpt2", Form.STD, Precision.FP32),
    ],
)
def test_answers_do_not_depend_on_the_files(
    decoder_folder: MakeFolder, tmp_path: Path, kind: str, form: Form, precision: Precision
) -> None:
    folder = copy_folder(decoder_folder(kind, form, precision), tmp_path / "decoder")
    with open_executor(folder) as executor:
        wanted = answer(executor)
    with open_executor(folder, own_weights=True) as executor:
        for path in folder.iterdir():
            os.truncate(path, 0)  # what is still mapped ends the process with SIGBUS
        shutil.rmtree(folder)
        assert answer(executor) == wanted


def _taken_out(graph: Any, folder: Path) -> Any:
    """A weight of the graph that is not in it any more, and lies in a file of its own."""
    whole = onnx.load(str(folder / "model.onnx")).graph
    weight = next(item for item in whole.initializer if item.data_type == TensorProto.FLOAT and len(item.dims) == 1)
    graph.initializer.remove(next(item for item in graph.initializer if item.name == weight.name))
    (folder / "apart.bin").write_bytes(numpy_helper.to_array(weight).tobytes())
    outside = TensorProto(
        name=weight.name, data_type=weight.data_type, dims=weight.dims, data_location=TensorProto.EXTERNAL
    )
    outside.external_data.add(key="location", value="apart.bin")
    return outside


def _as_a_constant(graph: Any, folder: Path) -> None:
    tensor = _taken_out(graph, folder)
    graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))


def _in_a_branch(graph: Any, folder: Path) -> None:
    tensor = _taken_out(graph, folder)
    name, tensor.name = tensor.name, "inner"
    shape = helper.make_tensor_value_info("chosen", tensor.data_type, tensor.dims)
    branch = helper.make_graph([helper.make_node("Identity", ["inner"], ["chosen"])], "branch", [], [shape], [tensor])
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    graph.node.insert(0, helper.make_node("If", ["yes"], [name], then_branch=branch, else_branch=branch))
    graph.node.insert(0, helper.make_node("Constant", [], ["yes"], value=flag))


def _misplaced(graph: Any, folder: Path, **entries: str) -> None:
    """The same, with other words for where the weight lies."""
    _in_a_branch(graph, folder)
    (node,) = (node for node in graph.node if node.op_type == "If")
    for branch in node.attribute:
        for key, value in entries.items():
            branch.g.initializer[0].external_data.add(key=key, value=value)


@pytest.mark.parametrize(
    "entries",
    [{"offset": "-5"}, {"offset": "x"}, {"offset": "9" * 30}, {"length": "3"}, {"location": "none"}],
    ids=lambda entries: "".join(map("=".join, entries.items()))[:12],
)
def test_a_place_that_is_not_one_is_refused(
    decoder_folder: MakeFolder, tmp_path: Path, entries: dict[str, str]
) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    change_graph(folder, lambda graph: _misplaced(graph, folder, **entries))
    with pytest.raises(DecoderError):
        open_executor(folder, own_weights=True)


def test_a_weight_in_a_branch_is_not_read_from_outside(decoder_folder: MakeFolder, tmp_path: Path) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    change_graph(folder, lambda graph: _misplaced(graph, folder, location="../outside"))
    (folder / "apart.bin").rename(tmp_path / "outside")
    with pytest.raises(UnsafePathError, match=r"contains '\.\.'"):
        open_executor(folder, own_weights=True)


@pytest.mark.parametrize("take_out", [_as_a_constant, _in_a_branch])
def test_weights_in_attributes_of_nodes_are_copied_too(
    decoder_folder: MakeFolder, tmp_path: Path, take_out: Callable[[Any, Path], None]
) -> None:
    with open_executor(decoder_folder()) as executor:
        wanted = answer(executor)
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    change_graph(folder, lambda graph: take_out(graph, folder))
    with open_executor(folder) as executor:
        assert answer(executor) == wanted
    with open_executor(folder, own_weights=True) as executor:
        for path in folder.iterdir():
            os.truncate(path, 0)
        shutil.rmtree(folder)
        assert answer(executor) == wanted


def test_a_missing_file_of_weights_is_named(decoder_folder: MakeFolder, tmp_path: Path) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    (weights,) = folder.glob("*.data")
    weights.unlink()
    with pytest.raises(DecoderError, match=rf"the file of weights '{weights.name}' cannot be read"):
        open_executor(folder, own_weights=True)


def test_a_file_of_weights_outside_of_the_folder_is_not_read(decoder_folder: MakeFolder, tmp_path: Path) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    (weights,) = folder.glob("*.data")
    outside = tmp_path / "outside"
    weights.rename(outside)
    weights.symlink_to(outside)
    with pytest.raises(UnsafePathError, match=f"'{weights.name}' is a link that leaves the model's directory"):
        open_executor(folder, own_weights=True)
