"""What scikit-learn's and CatBoost's converters make of recorded graphs, beside what the libraries answered.

The libraries are not needed: ``make_models.py`` recorded their graphs and answers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from repoagent_convert.tables import catboost, sklearn
from repoagent_convert.tables.foreign_graph import Input, finished, run

from repoagent.errors import InternalError

Arrays = Mapping[str, npt.NDArray[Any]]

_STORE: Final = np.load(Path(__file__).with_name("data") / "models.npz")
_NAMES: Final = sorted({name.split("/")[0] for name in _STORE.files})
_SETTINGS: Final = {"names": "repoagent", "double": False}
_WRONG_UNLESS_MENDED: Final = ("scikit-learn, random forest", "scikit-learn, isolation forest", "CatBoost, poisson")


def _arrays(name: str, part: str) -> dict[str, npt.NDArray[Any]]:
    prefix = f"{name}/{part}/"
    found = {key.removeprefix(prefix): _STORE[key] for key in _STORE.files if key.startswith(prefix)}
    return {key: array.astype(object) if array.dtype.kind == "U" else array for key, array in found.items()}


def _head(name: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(_STORE[f"{name}/head"].tobytes())
    return head


def _graph(name: str, *, mended: bool = True) -> Any:
    graph, head = onnx.load_from_string(_STORE[f"{name}/graph"].tobytes()), _head(name)
    if "loss" in head:
        catboost._mend(graph, head["loss"])
        return graph
    trees = {
        bytes.fromhex(key): (np.array(down, np.float32), None if left is None else np.array(left))
        for key, down, left in head["trees"]
    }
    return sklearn._mended(graph, trees if mended else {})


def _finished(name: str, graph: Any, expected: Arrays) -> tuple[Any, str]:
    head = _head(name)
    inputs = [Input(*one) for one in head["inputs"]]
    return finished(graph, inputs, head["roles"], _arrays(name, "rows"), expected, _SETTINGS, head["title"])


@pytest.mark.parametrize("name", _NAMES)
def test_a_model_answers_as_its_library_did(name: str) -> None:
    model, compared = _finished(name, _graph(name), _arrays(name, "expected"))
    assert compared.startswith(f"compared with {_head(name)['title']}: 256 rows, largest difference")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    roles = [one.name for one in session.get_outputs()]
    found = dict(zip(roles, session.run(None, _arrays(name, "held out")), strict=True))
    ((role, wanted),) = _arrays(name, "answers").items()
    np.testing.assert_allclose(found[role].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", _WRONG_UNLESS_MENDED)
def test_what_the_libraries_write_is_wrong_and_the_comparison_notices(name: str) -> None:
    head, expected = _head(name), _arrays(name, "expected")
    if "loss" in head:
        raw = onnx.load_from_string(_STORE[f"{name}/graph"].tobytes())
        (answer,) = run(raw, {raw.graph.input[0].name: _arrays(name, "rows")["input"]}).values()
        assert not np.allclose(answer.ravel(), expected["prediction"].ravel(), rtol=1e-2)
        return
    with pytest.raises(InternalError, match="answers differently from scikit-learn"):
        _finished(name, _graph(name, mended=False), expected)


@pytest.mark.parametrize("name", _NAMES)
def test_a_graph_with_another_weight_is_refused(name: str) -> None:
    expected = {
        role: array * 1.01 if array.dtype.kind == "f" else np.roll(array, 1)
        for role, array in _arrays(name, "expected").items()
    }
    with pytest.raises(InternalError, match="the converted model answers differently from"):
        _finished(name, _graph(name), expected)


_THRESHOLD: Final = 0.1
"""As float32 it is larger, so the number of a request that equals it then belongs to the right."""


def _forest(left: bool) -> Any:
    tree = {"feature": [0, -2, -2], "threshold": [_THRESHOLD, -2.0, -2.0], "missing_go_to_left": [left, False, False]}
    return SimpleNamespace(tree_=SimpleNamespace(**{name: np.array(values) for name, values in tree.items()}))


def _histograms() -> Any:
    kind = [("is_leaf", "u1"), ("feature_idx", "i8"), ("num_threshold", "f8")]
    nodes = np.array([(0, 0, _THRESHOLD), (1, 0, 0), (1, 0, 0)], kind)
    return SimpleNamespace(_predictors=[[SimpleNamespace(nodes=nodes)]])


def _stump() -> Any:
    """One split of a forest as skl2onnx writes it: 1 to the left, 2 to the right."""
    places: dict[str, Any] = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0]}
    ways: dict[str, Any] = {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0]}
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["input"],
        ["prediction"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[_THRESHOLD, 0.0, 0.0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
        **places,
        **ways,
    )
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in ("input", "prediction")]
    graph = helper.make_graph([node], "stump", tensors[:1], tensors[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(("part", "missing"), [(_forest(left=True), 1), (_forest(left=False), 2), (_histograms(), 2)])
def test_a_split_of_the_library_is_found_and_mended(part: Any, missing: int) -> None:
    """The records have what is looked up of a model; here it is looked up, and rounded down."""
    at, below = np.float32(_THRESHOLD), np.nextafter(np.float32(_THRESHOLD), np.float32(0))
    rows = np.array([[below], [at], [np.nan]], np.float32)
    (answers,) = run(sklearn._mended(_stump(), dict(sklearn._trees(part))), {"input": rows}).values()
    assert answers.ravel().tolist() == [1, 2, missing]
