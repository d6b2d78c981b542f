"""XGBoost to ONNX: models of ``save_model``, in JSON or Universal Binary JSON."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import ConverterOption, InvalidArgumentError, UnsupportedError, read_json
from repoagent_convert.trees.converter import TreeConverter
from repoagent_convert.trees.ensemble import Ensemble, Link, Rounding, Tree, bounded, integers, reals
from repoagent_convert.trees.ubj import read_ubj

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_JSON_BYTES: Final = 256 << 20
_JSON_VALUES: Final = 50_000_000
_INFINITE: Final = 3.4e38
_REAL: Final = "real"
_LOG: Final = "log"
_LOGIT: Final = "logit"
_OBJECTIVES: Final[Mapping[str, tuple[Link, str]]] = {
    "reg:squarederror": (Link.IDENTITY, _REAL),
    "reg:linear": (Link.IDENTITY, _REAL),
    "reg:squaredlogerror": (Link.IDENTITY, _REAL),
    "reg:absoluteerror": (Link.IDENTITY, _REAL),
    "reg:pseudohubererror": (Link.IDENTITY, _REAL),
    "reg:quantileerror": (Link.IDENTITY, _REAL),
    "rank:pairwise": (Link.IDENTITY, _REAL),
    "rank:ndcg": (Link.IDENTITY, _REAL),
    "rank:map": (Link.IDENTITY, _REAL),
    "binary:logitraw": (Link.IDENTITY, _REAL),
    "binary:hinge": (Link.STEP, _REAL),
    "reg:logistic": (Link.SIGMOID, _LOGIT),
    "binary:logistic": (Link.BINARY, _LOGIT),
    "multi:softprob": (Link.SOFTMAX, _REAL),
    "multi:softmax": (Link.SOFTMAX, _REAL),
    "count:poisson": (Link.EXP, _LOG),
    "reg:gamma": (Link.EXP, _LOG),
    "reg:tweedie": (Link.EXP, _LOG),
    "survival:cox": (Link.EXP, _LOG),
    "survival:aft": (Link.EXP, _LOG),
}
"""Objective -> what the sums become, and of what the stored base score has to be taken."""


class XgboostConverter(TreeConverter):
    """Trees of XGBoost 1.0 and later become an ensemble of ONNX's own."""

    version = "2"
    title = "XGBoost"
    library = "xgboost"
    options = {
        **TreeConverter.options,
        "missing": ConverterOption(None, "the number that stood for a missing one in training, as missing=-999"),
    }

    def recognizes(self, head: bytes) -> bool:
        """See :class:`TreeConverter`."""
        head = head.lstrip()
        if head[:2] in (b"{L", b"{l", b"{U", b"{i"):
            return b"learner" in head[:20] or b"version" in head[:20]
        return head[:1] == b"{" and head[1:].lstrip()[:9] in (b'"learner"', b'"version"') and b'"learner"' in head

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`TreeConverter`."""
        _missing(options.get("missing", "nan"))
        return {**super().settings(options), "missing": options.get("missing", "")}

    def read(self, data: bytes, settings: Mapping[str, Any]) -> tuple[Ensemble, Sequence[str]]:
        """See :class:`TreeConverter`."""
        return read_xgboost(data, settings.get("all_trees", False), settings.get("missing", ""))

    def expected(self, data: bytes, rows: "npt.NDArray[np.float32]", ensemble: Ensemble) -> "npt.NDArray[Any]":
        """What XGBoost itself answers."""
        import xgboost

        booster = xgboost.Booster(model_file=bytearray(data))
        if "multi:softmax" in booster.save_config():
            booster.set_param({"objective": "multi:softprob"})
        matrix = xgboost.DMatrix(
            rows,
            missing=ensemble.missing,
            feature_names=booster.feature_names,
            feature_types=booster.feature_types,
            enable_categorical=True,
        )
        found: npt.NDArray[Any] = booster.predict(matrix, iteration_range=(0, ensemble.iterations))
        return found


def read_xgboost(data: bytes, all_trees: bool = False, missing: str = "") -> tuple[Ensemble, Sequence[str]]:
    """The trees of a file, up to the best iteration unless all are wanted, and notes for the report.

    ``missing`` is the number that stands for a missing one; without it, what the file states.

    Raises:
        InvalidArgumentError: it is damaged.
        UnsupportedError: it has what ONNX cannot express.
    """
    learner = _member(_document(data), "learner", dict)
    objective = _member(_member(learner, "objective", dict), "name", str)
    booster = _member(learner, "gradient_booster", dict)
    kind, weights = _member(booster, "name", str), None
    if kind == "dart":
        weights = booster.get("weight_drop")
        booster = _member(booster, "gbtree", dict)
    elif kind != "gbtree":
        raise UnsupportedError(f"the booster '{kind[:40]}' has no trees that ONNX can express; gbtree and dart have")
    if objective not in _OBJECTIVES:
        raise UnsupportedError(f"the objective '{objective[:40]}' is not known; known are: {', '.join(_OBJECTIVES)}")
    ensemble = _ensemble(learner, objective)
    model = _member(booster, "model", dict)
    trees = _member(model, "trees", list)
    drops = None if weights is None else reals("weight_drop", weights, len(trees))
    targets = integers("tree_info", model.get("tree_info"), len(trees))
    count = len(trees)
    attributes = learner.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}
    ensemble.missing = _missing(missing or _stated(attributes.get("scikit_learn")))
    stands_for = "" if math.isnan(ensemble.missing) else f", and {ensemble.missing:g}"
    notes = [f"a missing number is NaN{stands_for} (the parameter 'missing' names another)"]
    best = attributes.get("best_iteration")
    if best is not None and not all_trees:
        ensemble.iterations = bounded("best_iteration", best, 0, len(trees)) + 1
        count = _trees_until(ensemble.iterations, model, ensemble.targets)
        notes.append(f"the first {count} of {len(trees)} trees, up to the best iteration (trees = all takes them all)")
    for number in range(count):
        ensemble.add(_tree(trees[number], int(targets[number]), 1.0 if drops is None else float(drops[number])))
    return ensemble, notes


def _stated(text: Any) -> float:
    """What stands for a missing number by ``text``, the parameters of scikit-learn's interface.

    Files before XGBoost 2 have them all, later ones only the kind of the estimator.
    """
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return float(read_json(text)["missing"])
    return math.nan


def _missing(value: Any) -> float:
    with suppress(TypeError, ValueError, OverflowError):
        if not abs(found := float(value)) >= _INFINITE:
            return found
    raise InvalidArgumentError(f"'missing' is '{value}'; expected a number of FP32, or nan")


def _document(data: bytes) -> dict[str, Any]:
    if data[:1] == b"{" and data[1:2] in (b"L", b"l", b"U", b"i", b"I"):
        document = read_ubj(data)
    elif len(data) > _JSON_BYTES:
        raise UnsupportedError(f"has more than {_JSON_BYTES} bytes of JSON; save it with the ending .ubj")
    else:
        try:
            document = read_json(data, most_values=_JSON_VALUES)
        except ValueError as error:
            raise InvalidArgumentError(f"is not JSON, or damaged: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgumentError("is not an object")
    return document


def _member(of: Any, name: str, kind: type[Any]) -> Any:
    found = of.get(name) if isinstance(of, dict) else None
    if not isinstance(found, kind):
        raise InvalidArgumentError(f"has no '{name}', or of another kind than {kind.__name__}")
    return found


def _ensemble(learner: Mapping[str, Any], objective: str) -> Ensemble:
    param = _member(learner, "learner_model_param", dict)
    link, scale = _OBJECTIVES[objective]
    classes = bounded("num_class", param.get("num_class", "0"), 0, 1 << 20)
    targets = max(1, classes, bounded("num_target", param.get("num_target", "1"), 0, 1 << 20))
    base = _base(param.get("base_score"), targets, scale)
    names = learner.get("feature_names", [])
    return Ensemble(
        features=bounded("num_feature", param.get("num_feature"), 0, 1 << 31),
        targets=targets,
        link=Link.LABELS if link is Link.BINARY and targets > 1 else link,
        base=base,
        equal_goes_yes=False,
        rounding=Rounding.DOWN,
        objective=objective,
        feature_names=[str(name) for name in names] if isinstance(names, list) else [],
    )


def _base(text: Any, targets: int, scale: str) -> list[float]:
    """What is added to the sums: XGBoost 3 writes a list in the text, earlier versions a number."""
    try:
        found = read_json(text) if isinstance(text, str) else text
        numbers = [float(one) for one in (found if isinstance(found, list) else [found])]
        numbers = numbers * targets if len(numbers) == 1 else numbers
        if scale == _LOGIT:
            return [math.log(one) - math.log1p(-one) for one in numbers]
        return [math.log(one) for one in numbers] if scale == _LOG else numbers
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgumentError("'base_score' is not a number that its objective can have") from None


def _trees_until(iterations: int, model: Mapping[str, Any], targets: int) -> int:
    total = len(model["trees"])
    if "iteration_indptr" in model:
        ends = integers("iteration_indptr", model["iteration_indptr"])
        if iterations < len(ends):
            return bounded("iteration_indptr", int(ends[iterations]), 0, total)
        raise InvalidArgumentError("'best_iteration' is beyond the last tree")
    param = model.get("gbtree_model_param")
    parallel = param.get("num_parallel_tree", "1") if isinstance(param, dict) else "1"
    return min(total, iterations * targets * max(1, bounded("num_parallel_tree", parallel, 0, total)))


def _tree(tree: Any, target: int, weight: float) -> Tree:
    """A row goes left where its feature is below the condition, or is none of the categories."""
    import numpy as np

    param = _member(tree, "tree_param", dict)
    if bounded("size_leaf_vector", param.get("size_leaf_vector", "1"), 0, 1 << 31) > 1:
        raise UnsupportedError("a tree for several targets at once (multi_strategy = multi_output_tree)")
    left = integers("left_children", tree.get("left_children"))
    size = len(left)
    right, feature = (integers(name, tree.get(name), size) for name in ("right_children", "split_indices"))
    default_left = integers("default_left", tree.get("default_left"), size).astype(np.bool_)
    by_category = integers("split_type", tree.get("split_type", [0] * size), size).astype(np.bool_) & (left != -1)
    if (right[by_category] == -1).any():  # it would pass for a leaf once the two are exchanged
        raise InvalidArgumentError("a split has a child that is not there")
    with np.errstate(over="ignore"):
        # XGBoost 2 leaves the conditions of splits by categories as they are.
        conditions = reals("split_conditions", tree.get("split_conditions"), size, ignored=by_category)
        condition = conditions.astype(np.float32)
        value = condition * np.float32(weight)
    return Tree(
        target=target,
        feature=feature,
        threshold=condition,
        yes=np.where(by_category, right, left),
        no=np.where(by_category, left, right),
        missing_yes=default_left ^ by_category,
        value=value,
        categories=_categories(tree, np.flatnonzero(by_category).tolist()) if by_category.any() else {},
    )


def _categories(tree: Mapping[str, Any], splits: Sequence[int]) -> "dict[int, npt.NDArray[np.int64]]":
    nodes = integers("categories_nodes", tree.get("categories_nodes"))
    starts = integers("categories_segments", tree.get("categories_segments"), len(nodes)).tolist()
    sizes = integers("categories_sizes", tree.get("categories_sizes"), len(nodes)).tolist()
    members = integers("categories", tree.get("categories"))
    found = {}
    for node, start, size in zip(nodes.tolist(), starts, sizes, strict=True):
        if not 0 <= start <= start + size <= len(members):
            raise InvalidArgumentError("'categories_segments' has a place that 'categories' does not have")
        found[node] = members[start : start + size]
    if missing := set(splits) - found.keys():
        raise InvalidArgumentError(f"the split {min(missing)} is by categories, and has none")
    return {split: found[split] for split in splits}
