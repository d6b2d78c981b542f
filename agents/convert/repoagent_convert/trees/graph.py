"""The ONNX model that computes an ensemble of trees."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repoagent_convert.tables.tabular import NAMES
from repoagent_convert.trees.ensemble import LEAF, NEARLY_ZERO, Ensemble, Link, Rounding

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx


def to_onnx(ensemble: Ensemble, names: str, *, double: bool) -> "onnx.ModelProto":
    """The model of ``ensemble``, with the tensors that :data:`NAMES` has under ``names``; ``double``: it takes FP64.

    Raises:
        InvalidArgumentError, UnsupportedError: see :meth:`Ensemble.columns`.
    """
    return _Graph(ensemble, NAMES[names]).model(double)


class _Graph:
    """Writes the nodes of one model."""

    def __init__(self, ensemble: Ensemble, names: Mapping[str, str]) -> None:
        self._ensemble = ensemble
        self._names = names
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._outputs: list[Any] = []

    def model(self, double: bool) -> "onnx.ModelProto":
        from onnx import TensorProto, helper

        one, name = self._ensemble, self._names["input"]
        kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
        row = self._node("Cast", [name], to=TensorProto.FLOAT) if double else name
        self._finish(self._sums(self._rounded(self._marked(row))))
        rows = helper.make_tensor_value_info(name, kind, ["batch", one.features])
        graph = helper.make_graph(self._nodes, "trees", [rows], self._outputs, self._constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="repoagent")
        facts = {"objective": one.objective, "feature_names": json.dumps(list(one.feature_names))}
        helper.set_model_props(model, facts)
        return model

    def _node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The name of what a new node of this kind computes."""
        from onnx import helper

        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def _constant(self, value: Any, kind: str) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def _mask(self, features: set[int]) -> str:
        import numpy as np

        mask = np.zeros(self._ensemble.features, np.bool_)
        mask[list(features)] = True
        return self._constant(mask, "bool")

    def _marked(self, row: str) -> str:
        """``row`` with NaN for what stands for it: a number in XGBoost, what is nearly 0 in columns of LightGBM."""
        zeros, missing = self._ensemble.zero_is_missing, self._ensemble.missing
        if not math.isnan(missing):
            absent = self._node("Equal", [row, self._constant(missing, "float32")])
        elif zeros:
            near = self._node("LessOrEqual", [self._node("Abs", [row]), self._constant(NEARLY_ZERO, "float32")])
            absent = self._node("And", [near, self._mask(zeros)])
        else:
            return row
        return self._node("Where", [absent, self._constant(float("nan"), "float32"), row])

    def _rounded(self, row: str) -> str:
        """``row`` with whole numbers in the columns of categories."""
        if not self._ensemble.categorical:
            return row
        if self._ensemble.rounding is Rounding.DOWN:
            whole = self._node("Floor", [row])
        else:
            whole = self._node("Mul", [self._node("Floor", [self._node("Abs", [row])]), self._node("Sign", [row])])
        return self._node("Where", [self._mask(self._ensemble.categorical), whole, row])

    def _sums(self, row: str) -> str:
        import numpy as np
        from onnx import helper

        one, columns = self._ensemble, self._ensemble.columns()
        leaf = columns.mode == LEAF
        kinds = np.array([b"LEAF", b"BRANCH_LEQ" if one.equal_goes_yes else b"BRANCH_LT", b"BRANCH_EQ"])
        node = helper.make_node("TreeEnsembleRegressor", [row], ["sums"], domain="ai.onnx.ml", n_targets=one.targets)
        for name, values in {
            "nodes_treeids": columns.tree,
            "nodes_nodeids": columns.node,
            "nodes_modes": kinds[columns.mode],
            "nodes_featureids": np.where(leaf, 0, columns.feature),
            "nodes_values": np.where(leaf, np.float32(0), columns.value),
            "nodes_truenodeids": np.where(leaf, 0, columns.yes),
            "nodes_falsenodeids": np.where(leaf, 0, columns.no),
            "nodes_missing_value_tracks_true": np.where(leaf, 0, columns.missing_yes),
            "target_treeids": columns.tree[leaf],
            "target_nodeids": columns.node[leaf],
            "target_ids": columns.target[leaf],
            "target_weights": columns.value[leaf],
            "base_values": np.asarray(one.base, np.float32),
        }.items():
            _set(node.attribute.add(), name, values)
        self._nodes.append(node)
        return "sums"

    def _finish(self, sums: str) -> None:
        targets = self._ensemble.targets
        match self._ensemble.link:
            case Link.IDENTITY:
                self._predict(self._node("Identity", [sums]))
            case Link.EXP:
                self._predict(self._node("Exp", [sums]))
            case Link.SIGMOID:
                self._predict(self._node("Sigmoid", [sums]))
            case Link.SOFTPLUS:
                self._predict(self._node("Softplus", [sums]))
            case Link.SQUARE:
                self._predict(self._node("Mul", [sums, self._node("Abs", [sums])]))
            case Link.STEP:
                step = self._above(sums, 0)
                self._output("label", step, 1) if "label" in self._names else self._predict(self._float(step))
            case Link.BINARY:
                yes = self._node("Sigmoid", [sums])
                no = self._node("Sub", [self._constant(1, "float32"), yes])
                self._classify(self._above(yes, 0.5), 1, self._node("Concat", [no, yes], axis=1), 2)
            case Link.LABELS:
                each = self._node("Sigmoid", [sums])
                self._classify(self._above(each, 0.5), targets, each, targets)
            case Link.SOFTMAX | Link.ONE_OF as link:
                is_softmax = link is Link.SOFTMAX
                each = self._node("Softmax", [sums], axis=1) if is_softmax else self._node("Sigmoid", [sums])
                self._classify(self._node("ArgMax", [each], axis=1), 1, each, targets)

    def _above(self, values: str, threshold: float) -> str:
        from onnx import TensorProto

        above = self._node("Greater", [values, self._constant(threshold, "float32")])
        return self._node("Cast", [above], to=TensorProto.INT64)

    def _float(self, values: str) -> str:
        from onnx import TensorProto

        return self._node("Cast", [values], to=TensorProto.FLOAT)

    def _predict(self, values: str) -> None:
        self._output("prediction", values, self._ensemble.targets)

    def _classify(self, label: str, labels: int, probabilities: str, classes: int) -> None:
        self._output("label", label, labels)
        self._output("probabilities", probabilities, classes)

    def _output(self, role: str, values: str, width: int) -> None:
        from onnx import TensorProto, helper

        if role in self._names:
            kind = TensorProto.INT64 if role == "label" else TensorProto.FLOAT
            self._nodes.append(helper.make_node("Identity", [values], [self._names[role]]))
            self._outputs.append(helper.make_tensor_value_info(self._names[role], kind, ["batch", width]))


def _set(attribute: Any, name: str, values: "npt.NDArray[Any]") -> None:
    """Fill an attribute: ``onnx.helper`` looks at each of millions of numbers to find out what they are."""
    from onnx import AttributeProto

    attribute.name = name
    place, attribute.type = {
        "S": (attribute.strings, AttributeProto.STRINGS),
        "f": (attribute.floats, AttributeProto.FLOATS),
    }.get(values.dtype.kind, (attribute.ints, AttributeProto.INTS))
    place.extend(values.tolist())
