"""Every kind of model: what its library answered is what ONNX Runtime answers, or it is refused by name.

The files are those that ``make models`` recorded: 35 kinds of XGBoost 3.2, eight of 2.1 and of 3.0, 27 kinds of
LightGBM 4.7 and six of 3.3. Their rows have missing numbers, categories that training has not seen, negative and broken
ones.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from repoagent_convert.trees.converter import compare, random_rows
from repoagent_convert.trees.ensemble import Ensemble
from repoagent_convert.trees.graph import to_onnx
from repoagent_convert.trees.lightgbm import read_lightgbm
from repoagent_convert.trees.xgboost import read_xgboost

from repoagent.errors import UnsupportedError
from tests.extent import in_full

from .conftest import STORE, Recorded

NAMES = sorted({name.partition("/")[0] for name in STORE.files})
REFUSED = {
    "xgb-refused-gblinear.json": "the booster 'gblinear' has no trees",
    "xgb-refused-vector-leaf.json": "a tree for several targets at once",
    "lgb-refused-linear.txt": "linear trees",
}


@pytest.mark.kinds("accepted", "")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_the_answers_are_those_of_the_library(name: str) -> None:
    model = Recorded(name)
    ensemble, _ = model.converter.read(model.content, {})
    made = to_onnx(ensemble, "repoagent", double=False)
    onnx.checker.check_model(made, full_check=True)
    difference, is_close = compare(made.SerializeToString(), ensemble, model.rows, model.answers)
    assert is_close
    assert difference <= 2e-6 * max(1, np.abs(model.answers).max())


def test_a_category_that_is_not_whole_is_what_the_library_makes_of_it() -> None:
    """XGBoost and LightGBM count 3.7 as 3; what is below 0 is unknown to one, and to the other only from -1 on."""
    for name in (name for name in NAMES if "categories" in name):
        rows, answers = Recorded(name).rows, Recorded(name).answers
        model = Recorded(name)
        ensemble, _ = model.converter.read(model.content, {})
        broken = np.flatnonzero(rows[:, 0] % 1)
        assert {-0.5, 0.5, np.float32(3.7)} <= {*rows[broken, 0]}
        made = to_onnx(ensemble, "repoagent", double=False).SerializeToString()
        assert compare(made, ensemble, rows[broken], answers[broken])[1]


@pytest.mark.kinds("refused by name", "")
@pytest.mark.parametrize(("name", "text"), REFUSED.items())
def test_what_onnx_cannot_express_is_refused_by_name(name: str, text: str) -> None:
    model = Recorded(name)
    with pytest.raises(UnsupportedError, match=text):
        model.converter.read(model.content, {})


@pytest.mark.parametrize("name", ["xgb-categories-100.ubj", "lgb-categories.txt", "lgb-zero-as-missing.txt"])
def test_rows_for_a_comparison_have_thresholds_categories_and_what_is_missing(name: str) -> None:
    model = Recorded(name)
    ensemble, _ = model.converter.read(model.content, {})
    rows = random_rows(ensemble)
    features, values = ensemble.columns().thresholds()
    assert rows.shape == (256, 6)
    assert np.array_equal(rows, random_rows(ensemble), equal_nan=True)
    used = {*features.tolist()}
    assert all(np.isin(rows[:, one], values[features == one]).sum() > 20 for one in used)
    assert all(np.isnan(rows[:, one]).any() and (rows[:, one] == 0).any() for one in used)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_tree_is_seen(name: str, recorded: Callable[[str], Recorded]) -> None:
    """The comparison itself: what differs by a thousandth of the answers is not close to them."""
    if name in REFUSED or "hinge" in name:
        return
    model = recorded(name)
    ensemble, _ = model.converter.read(model.content, {})
    content = to_onnx(ensemble, "repoagent", double=False).SerializeToString()
    wrong: Any = model.answers.copy()
    wrong[3] += 1e-3 * np.abs(wrong).max()
    assert not compare(content, ensemble, model.rows, wrong)[1]


# Trees at random: what a walk over the file by the rules of its library answers is what ONNX Runtime answers.
#
# The recorded models have few of the cases that a file can have: each way of a missing number at each kind of split,
# categories beside and beyond those of a split, thresholds that are nearly 0.

SEEDS = range(in_full(300, otherwise=10))
ROWS = 100
NEARLY_ZERO = float(np.float32(1e-35))
HARD = (0, -0.0, 1e-36, -1e-36, 1e-35, -1e-35, 1e-34, -1e-34, 0.5, np.nextafter(np.float32(0.5), 1), np.inf, -np.inf)
CATEGORIES = (-1, -0.5, 0, 0.5, 1, 2.7, 30, 31, 32, 33, 39, 40, 63, 64, 69, 70, 1e6, 2**24)


def rows_for(random: Any, features: int, categorical: set[int]) -> Any:
    rows = random.normal(size=(ROWS, features)).round(1).astype(np.float32)
    rows = np.where(random.random(rows.shape) < 0.3, random.choice(np.array(HARD, np.float32), rows.shape), rows)
    for feature in categorical:
        rows[:, feature] = random.choice(CATEGORIES, ROWS)
    rows[random.random(rows.shape) < 0.15] = np.nan
    return rows


def features_for(random: Any) -> tuple[int, set[int]]:
    features = int(random.integers(1, 6))
    return features, {*np.flatnonzero(random.random(features) < 0.4).tolist()}


def assert_answers(ensemble: Ensemble, rows: Any, expected: Any) -> None:
    session = ort.InferenceSession(to_onnx(ensemble, "repoagent", double=False).SerializeToString())
    assert np.abs(session.run(None, {"input": rows})[0][:, 0] - expected).max() < 1e-5


def xgboost_tree(random: Any, features: int, categorical: set[int]) -> dict[str, Any]:
    """Nodes in the order in which they are made; each that is not a leaf is split further below."""
    splits = int(random.integers(0, 25))
    nodes: list[dict[str, Any]] = [{}]
    for _ in range(splits):
        one = random.choice([node for node in nodes if not node])
        feature = int(random.integers(features))
        members = {*random.integers(0, random.choice([5, 40, 70]), random.integers(1, 40)).tolist()}
        one.update(
            feature=feature,
            members=sorted(members) if feature in categorical else None,
            children=(len(nodes), len(nodes) + 1),
            missing_left=int(random.integers(2)),
        )
        nodes += [{}, {}]
    values = random.normal(size=len(nodes)).round(1).astype(np.float32).tolist()
    by_category = [place for place, node in enumerate(nodes) if node.get("members")]
    sizes = [len(nodes[place]["members"]) for place in by_category]
    return {
        "tree_param": {},
        "left_children": [node["children"][0] if node else -1 for node in nodes],
        "right_children": [node["children"][1] if node else -1 for node in nodes],
        "split_indices": [node.get("feature", 0) for node in nodes],
        "split_conditions": values,
        "split_type": [int(bool(node.get("members"))) for node in nodes],
        "default_left": [node.get("missing_left", 0) for node in nodes],
        "categories": [member for place in by_category for member in nodes[place]["members"]],
        "categories_nodes": by_category,
        "categories_segments": [sum(sizes[:place]) for place in range(len(sizes))],
        "categories_sizes": sizes,
    }


def xgboost_answer(tree: dict[str, Any], row: Any) -> float:
    node = 0
    while tree["left_children"][node] != -1:
        number = row[tree["split_indices"][node]]
        if np.isnan(number):
            is_left = bool(tree["default_left"][node])
        elif tree["split_type"][node]:
            place = tree["categories_nodes"].index(node)
            start, size = tree["categories_segments"][place], tree["categories_sizes"][place]
            is_left = not 0 <= number < 2**24 or int(number) not in tree["categories"][start : start + size]
        else:
            is_left = number < np.float32(tree["split_conditions"][node])
        node = tree["left_children" if is_left else "right_children"][node]
    return float(tree["split_conditions"][node])


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_of_xgboost(seed: int) -> None:
    random = np.random.default_rng(seed)
    features, categorical = features_for(random)
    trees = [xgboost_tree(random, features, categorical) for _ in range(3)]
    learner = {
        "learner_model_param": {"base_score": "0.25", "num_feature": str(features)},
        "objective": {"name": "reg:squarederror"},
        "gradient_booster": {"name": "gbtree", "model": {"trees": trees, "tree_info": [0, 0, 0]}},
    }
    ensemble, _ = read_xgboost(json.dumps({"learner": learner}).encode())
    rows = rows_for(random, features, categorical)
    assert_answers(ensemble, rows, [0.25 + sum(xgboost_answer(tree, row) for tree in trees) for row in rows])


def lightgbm_tree(random: Any, features: int, categorical: set[int], missing: list[int]) -> dict[str, list[Any]]:
    splits = int(random.integers(0, 12))
    tree: dict[str, list[Any]] = {"left_child": [], "right_child": [], "split_feature": [], "threshold": []}
    tree |= {"decision_type": [], "cat_boundaries": [0], "cat_threshold": []}
    for split in range(splits):
        if split:  # in the place of a leaf
            side = tree[str(random.choice(["left_child", "right_child"]))]
            place = int(random.choice([place for place, child in enumerate(side) if child < 0] or [-1]))
            if place < 0:
                break
            leaf, side[place] = side[place], split
        else:
            leaf = -1
        tree["left_child"].append(leaf)
        tree["right_child"].append(-2 - split)
        feature = int(random.integers(features))
        tree["split_feature"].append(feature)
        if feature in categorical:
            tree["threshold"].append(len(tree["cat_boundaries"]) - 1)
            tree["cat_threshold"] += random.integers(1, 2**32, random.integers(1, 3)).tolist()
            tree["cat_boundaries"].append(len(tree["cat_threshold"]))
            tree["decision_type"].append(1 | missing[feature] << 2)
        else:
            near = (0.0, 1e-36, -1e-36, NEARLY_ZERO, -NEARLY_ZERO, 1e300, -1e300, 0.5, random.normal())
            tree["threshold"].append(float(random.choice(near)))
            tree["decision_type"].append(int(random.choice([0, 2])) | missing[feature] << 2)
    return {**tree, "leaf_value": random.normal(size=len(tree["threshold"]) + 1).round(3).tolist()}


def lightgbm_answer(tree: dict[str, list[Any]], row: Any) -> float:
    node = 0 if tree["left_child"] else -1
    while node >= 0:
        number, kind = float(row[tree["split_feature"][node]]), tree["decision_type"][node]
        threshold = tree["threshold"][node]
        if kind & 1:
            category = -1 if math.isnan(number) else int(number)
            start, end = tree["cat_boundaries"][threshold : threshold + 2]
            word, bit = divmod(category, 32)
            is_left = 0 <= word < end - start and bool(tree["cat_threshold"][start + word] >> bit & 1)
        else:
            number = 0 if abs(number) <= NEARLY_ZERO or (math.isnan(number) and kind >> 2 != 2) else number
            is_missing = math.isnan(number) or (kind >> 2 == 1 and number == 0)
            is_left = bool(kind & 2) if is_missing else number <= threshold
        node = tree["left_child" if is_left else "right_child"][node]
    return float(tree["leaf_value"][~node])


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_of_lightgbm(seed: int) -> None:
    random = np.random.default_rng(seed)
    features, categorical = features_for(random)
    missing = random.integers(0, 3, features).tolist()
    trees = [lightgbm_tree(random, features, categorical, missing) for _ in range(3)]
    text = f"tree\nnum_tree_per_iteration=1\nmax_feature_idx={features - 1}\nobjective=regression\ntree_sizes=1 1 1\n"
    for number, tree in enumerate(trees):
        text += f"\nTree={number}\nnum_leaves={len(tree['leaf_value'])}\n"
        text += "".join(f"{name}={' '.join(map(str, values))}\n" for name, values in tree.items())
    ensemble = read_lightgbm(f"{text}end of trees\n".encode())
    rows = rows_for(random, features, categorical)
    assert_answers(ensemble, rows, [sum(lightgbm_answer(tree, row) for tree in trees) for row in rows])
