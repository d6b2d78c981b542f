"""Every kind of model: what its library answered is what ONNX Runtime answers, or it is refused by name.

The files are those that ``make models`` recorded: 35 kinds of XGBoost 3.2, eight of 2.1 and of 3.0, 27 kinds of
LightGBM 4.7 and six of 3.3. Their rows have missing numbers, categories that training has not seen, negative and broken
ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from repoagent.converters.trees.converter import compare, random_rows
from repoagent.converters.trees.graph import to_onnx
from repoagent.errors import UnsupportedError

from .conftest import STORE, Recorded

NAMES = sorted({name.partition("/")[0] for name in STORE.files})
REFUSED = {
    "xgb-refused-gblinear.json": "the booster 'gblinear' has no trees",
    "xgb-refused-vector-leaf.json": "a tree for several targets at once",
    "lgb-refused-linear.txt": "linear trees",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_the_answers_are_those_of_the_library(name: str) -> None:
    model = Recorded(name)
    ensemble, _ = model.converter.read(model.content, False)
    made = to_onnx(ensemble, "repoagent", double=False)
    onnx.checker.check_model(made, full_check=True)
    difference, is_close = compare(made.SerializeToString(), ensemble, model.rows, model.answers)
    assert is_close
    assert difference <= 2e-6 * max(1, np.abs(model.answers).max())


@pytest.mark.parametrize(("name", "text"), REFUSED.items())
def test_what_onnx_cannot_express_is_refused_by_name(name: str, text: str) -> None:
    model = Recorded(name)
    with pytest.raises(UnsupportedError, match=text):
        model.converter.read(model.content, False)


@pytest.mark.parametrize("name", ["xgb-categories-100.ubj", "lgb-categories.txt", "lgb-zero-as-missing.txt"])
def test_rows_for_a_comparison_have_thresholds_categories_and_what_is_missing(name: str) -> None:
    model = Recorded(name)
    ensemble, _ = model.converter.read(model.content, False)
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
    ensemble, _ = model.converter.read(model.content, False)
    content = to_onnx(ensemble, "repoagent", double=False).SerializeToString()
    wrong: Any = model.answers.copy()
    wrong[3] += 1e-3 * np.abs(wrong).max()
    assert not compare(content, ensemble, model.rows, wrong)[1]
