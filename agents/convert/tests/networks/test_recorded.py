"""What becomes of recorded graphs of networks, beside what their frameworks answered; no framework is needed.

``make_models.py`` recorded the graphs that tf2onnx wrote, and the answers to the requests of the comparison.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from repoagent_convert.networks import tensorflow
from repoagent_convert.networks.network import Asking, Tensor, written

from repoagent.api import ConversionJob, Product
from repoagent.errors import InternalError, UnsupportedError

_STORE: Final = np.load(Path(__file__).with_name("data") / "models.npz")
_NAMES: Final = sorted({name.split("/")[0] for name in _STORE.files})


def _head(name: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(_STORE[f"{name}/head"].tobytes())
    return head


def _tensors(name: str, place: str) -> list[Tensor]:
    return [Tensor(**{**one, "shape": one["shape"] and tuple(one["shape"])}) for one in _head(name)[place]]


def _recorded(name: str, factor: float = 1.0) -> Asking:
    """The answers of the framework, in turn; some are wrong."""
    turn = iter(range(1000))
    count = len(_tensors(name, "outputs"))

    def ask(rows: Sequence[Any]) -> Sequence[Any]:
        number = next(turn)
        answers = [_STORE[f"{name}/answers/{number}/{output}"] for output in range(count)]
        return [one * np.float32(factor) if one.dtype.kind == "f" else one for one in answers]

    return ask


def _written(name: str, directory: Path, ask: Asking, graph: Any = None) -> Product:
    graph = graph or onnx.load_from_string(_STORE[f"{name}/graph"].tobytes())
    job = ConversionJob(directory, directory, {"output": "model.onnx"})
    return written(job, graph, _tensors(name, "inputs"), _tensors(name, "outputs"), ask, _head(name)["title"])


@pytest.mark.parametrize("name", _NAMES)
def test_a_network_answers_as_its_framework_did(name: str, tmp_path: Path) -> None:
    product = _written(name, tmp_path, _recorded(name))
    assert product.notes[0].partition(" difference ")[0] == _head(name)["note"].partition(" difference ")[0]
    assert "256 rows" in product.notes[0]
    for place, tensors in (("inputs", _tensors(name, "inputs")), ("outputs", _tensors(name, "outputs"))):
        assert [one["name"] for one in product.annotations[place]] == [one.name for one in tensors]
        assert [one["dims"] for one in product.annotations[place]] == [
            [-1 if size is None else size for size in (one.shape or ())[1:]] for one in tensors
        ]


@pytest.mark.parametrize("name", _NAMES)
def test_a_network_with_other_weights_is_refused_with_the_difference(name: str, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"answers differently from .*: '.*' by up to \d.* in 256 rows"):
        _written(name, tmp_path, _recorded(name, 1.01))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("Keras, MLP", (["input_0"], ["output_0"])),
        ("Keras, CNN", (["image"], ["logits"])),
        ("Keras, two inputs", (["numbers", "history"], ["price", "kind"])),
        ("Keras, transformer", (["input_0"], ["largest", "tokens"])),
        ("SavedModel, module", (["features"], ["best", "scores"])),
        ("SavedModel, Keras", (["image"], ["output_0"])),
    ],
)
def test_names_that_were_chosen_stay(name: str, names: tuple[list[str], list[str]]) -> None:
    found = tuple([one.name for one in _tensors(name, place)] for place in ("inputs", "outputs"))
    assert found == names


def _graph(kind: str, inputs: int = 1, domain: str = "") -> Any:
    """One operation between a matrix, and vectors, and a matrix."""
    node = helper.make_node(kind, [f"input_{number}" for number in range(inputs)], ["y"], domain=domain)
    tensors = [helper.make_tensor_value_info(f"input_{number}", TensorProto.FLOAT, [None, 2]) for number in range(1)]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "graph", tensors[:inputs], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _of(
    graph: Any, ask: Asking, directory: Path, *inputs: Tensor, shape: tuple[int | None, ...] | None = (None, 2)
) -> Product:
    job = ConversionJob(directory, directory, {"output": "model.onnx"})
    return written(job, graph, inputs or [Tensor("x", (None, 2))], [Tensor("y", shape)], ask, "a library")


def test_operations_that_are_not_onnx_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot be converted to ONNX: the operations ReadFile"):
        _of(_graph("ReadFile"), lambda rows: rows, tmp_path)


def test_an_input_without_use_is_kept_as_clients_send_it(tmp_path: Path) -> None:
    product = _of(_graph("Abs"), lambda rows: [abs(rows[0])], tmp_path, Tensor("x", (None, 2)), Tensor("z", (None, 3)))
    assert [one["name"] for one in product.annotations["inputs"]] == ["x", "z"]


def test_whole_numbers_and_shapes_are_compared_too(tmp_path: Path) -> None:
    graph = _graph("Cast")
    graph.graph.node[0].attribute.append(helper.make_attribute("to", TensorProto.INT64))
    graph.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert _of(graph, lambda rows: [rows[0].astype(np.int64)], tmp_path)
    with pytest.raises(InternalError, match=r"'y' in \d+\.\d% of its values"):
        _of(graph, lambda rows: [rows[0].astype(np.int64) + 1], tmp_path)
    with pytest.raises(InternalError, match=r"'y' of the shape \(\d+, 2\) instead of \(\d+, 1\)"):
        _of(_graph("Abs"), lambda rows: [rows[0][:, :1]], tmp_path)


def test_what_is_not_a_number_in_both_is_equal(tmp_path: Path) -> None:
    with np.errstate(invalid="ignore"):
        assert "compared with" in _of(_graph("Log"), lambda rows: [np.log(rows[0])], tmp_path).notes[0]
        with pytest.raises(InternalError, match="answers differently"):
            _of(_graph("Log"), lambda rows: [np.log(np.abs(rows[0]))], tmp_path)


def test_answers_without_a_number_are_no_comparison(tmp_path: Path) -> None:
    note = _of(_graph("Abs"), lambda rows: [rows[0] * np.float32(np.nan)], tmp_path).notes[0]
    assert note == "not compared: a library does not take the rows: it answers no numbers"


def test_a_difference_counts_where_the_framework_refuses_a_later_request(tmp_path: Path) -> None:
    asked: list[int] = []

    def once(rows: Any) -> Any:
        asked.append(len(rows))
        if len(asked) % 2 == 0:
            raise ValueError("an index is too large")
        return [abs(rows[0]) + 1]

    with pytest.raises(InternalError, match="answers differently"):
        _of(_graph("Abs"), once, tmp_path)


def test_a_graph_that_has_kept_the_length_of_an_example_is_refused(tmp_path: Path) -> None:
    """As torch's exporter makes of the LSTM of a Keras model: the numbers of the first length are right."""
    given = Tensor("x", (None, None))
    with pytest.raises(InternalError, match="answers differently"):
        _of(_graph("Abs"), lambda rows: [rows[0][:, :16]], tmp_path, given, shape=(None, None))
    assert _of(_graph("Abs"), lambda rows: [abs(rows[0])], tmp_path, given, shape=(None, None))


def test_rows_that_the_framework_refuses_are_drawn_otherwise_and_at_last_reported(tmp_path: Path) -> None:
    def whole(rows: Any) -> Any:
        if (rows[0] < 0).any() or (rows[0] > 1).any():
            raise ValueError("indices[0,0] = -1 is not in [0, 2)")
        return [abs(rows[0])]

    assert "compared with a library: 256 rows" in _of(_graph("Abs"), whole, tmp_path).notes[0]

    def never(rows: Any) -> Any:
        raise ValueError("a table is missing")

    note = _of(_graph("Abs"), never, tmp_path).notes[0]
    assert note == "not compared: a library does not take the rows: a table is missing"


def test_a_shape_that_the_framework_does_not_know_is_that_of_the_answers(tmp_path: Path) -> None:
    product = _of(_graph("Abs"), lambda rows: [abs(rows[0])], tmp_path, shape=None)
    assert (product.annotations["batch"], product.annotations["outputs"][0]["dims"]) == (1024, [-1])


@pytest.mark.parametrize(("shape", "answer"), [((None, 2), 3), ((4, 2), None), ((None,), None)])
def test_a_network_whose_answers_have_no_row_for_each_row_has_no_batches(
    shape: tuple[int | None, ...], answer: int | None, tmp_path: Path
) -> None:
    graph = _graph("ReduceSum") if shape == (None,) else _graph("Abs")
    graph.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    if shape == (None,):  # of all rows, one number a column
        graph.graph.node[0].attribute.append(helper.make_attribute("keepdims", 0))
        graph.graph.node[0].input.append("axes")
        graph.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [1], [0]))
        product = _of(graph, lambda rows: [rows[0].sum(axis=0)], tmp_path, shape=shape)
    elif answer:
        product = _of(graph, lambda rows: [abs(rows[0])], tmp_path)
    else:
        product = _of(graph, lambda rows: [abs(rows[0])], tmp_path, Tensor("x", (4, 2)), shape=(4, 2))
    assert bool(product.annotations["batch"]) == bool(answer)
    assert [one["dims"] for one in product.annotations["inputs"]] == [[2] if answer else [shape[0] or -1, 2]]


def test_a_shape_that_tensorflow_refuses_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a damaged SavedModel has it."""

    def refuse(*_: Any) -> Any:
        raise ValueError("Dimension -5 must be >= 0")

    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(TensorSpec=refuse, as_dtype=str))
    monkeypatch.setitem(sys.modules, "tf2onnx", SimpleNamespace())
    job = ConversionJob(tmp_path, tmp_path, {"output": "model.onnx"})
    with pytest.raises(UnsupportedError, match="cannot be converted to ONNX: ValueError: Dimension -5 must be >= 0"):
        tensorflow._built(job, list, [Tensor("input", (-5,))], [], "tensorflow")
