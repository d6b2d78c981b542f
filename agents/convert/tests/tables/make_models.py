"""Trains models with scikit-learn and CatBoost, and records what their libraries make of them: ``make models``.

The tests have neither library: they read ``data/models.npz``, which has for each model the graph that skl2onnx or
CatBoost wrote, what our converter knows of the model besides, and what the library answers: to the rows of the
converter's own comparison, and to rows that training has not seen.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[4]))

from repoagent_convert.tables import catboost as of_catboost
from repoagent_convert.tables import sklearn as of_sklearn
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from agents.convert.tests.tables import test_catboost, test_sklearn
from repoagent.api import ConversionJob, ConversionSource

STORE = Path(__file__).with_name("data") / "models.npz"
ROWS = 60
FEW = {"n_estimators": 5, "max_depth": 4, "random_state": 0}
SKLEARN: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "scaler, logistic regression": test_sklearn.KINDS["scaler, logistic regression"],
    "random forest": (lambda: RandomForestClassifier(**FEW), test_sklearn.X, test_sklearn.Y),
    "random forest, regression": (lambda: RandomForestRegressor(**FEW), test_sklearn.XR, test_sklearn.YR),
    "gradient boosting": (lambda: GradientBoostingClassifier(**FEW), test_sklearn.X, test_sklearn.Y),
    "histogram gradient boosting, missing": (
        lambda: HistGradientBoostingRegressor(max_iter=5, max_leaf_nodes=8),
        test_sklearn.NAN,
        test_sklearn.YR,
    ),
    "isolation forest": (lambda: IsolationForest(n_estimators=5, max_samples=32, random_state=0), test_sklearn.X, None),
    "columns, random forest": (
        lambda: make_pipeline(test_sklearn.columns(), RandomForestClassifier(**FEW)),
        test_sklearn.FRAME,
        test_sklearn.TAKEN,
    ),
    "TF-IDF": test_sklearn.KINDS["TF-IDF"],
    "text labels": (LogisticRegression, test_sklearn.X, np.array(["a", "b", "c"])[test_sklearn.Y]),
}
recorded: dict[str, Any] = {}


def texts(values: Any) -> Any:
    """An array that NumPy writes without pickle."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind == "O" else array


def keep(name: str, graph: bytes, given: tuple[Any, ...], known: dict[str, Any], held_out: Any, answers: Any) -> None:
    """``given``: what the converter calls ``finished`` with."""
    _, inputs, roles, rows, expected, _, title = given
    assert not isinstance(expected, str), expected
    head = {"inputs": [[one.name, one.kind, one.width] for one in inputs], "roles": roles, "title": title, **known}
    recorded[f"{name}/head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    recorded[f"{name}/graph"] = np.frombuffer(graph, np.uint8)
    for part, values in (("rows", rows), ("expected", expected), ("held out", held_out), ("answers", answers)):
        recorded.update({f"{name}/{part}/{key}": texts(value) for key, value in values.items()})


def convert(converter: Any, folder: Path, module: Any, mend: str) -> tuple[bytes, Any, tuple[Any, ...]]:
    """The graph before it was mended, what it was mended with, and the arguments of ``finished``."""
    raw: list[Any] = []
    mended, finished = getattr(module, mend), module.finished

    def note(graph: Any, how: Any) -> Any:
        raw.extend((graph.SerializeToString(), how))
        return mended(graph, how)

    def last(*given: Any) -> Any:
        raw.append(given)
        return finished(*given)

    options = {name: one.default for name, one in converter.options.items() if one.default is not None}
    plan = converter.plan(ConversionSource(folder, "model", "1/model"), options)
    with patch.object(module, mend, note), patch.object(module, "finished", last):
        converter.build(ConversionJob(folder, folder, plan.settings))
    graph, how, given = raw
    return graph, how, given


def of_library(model: Any, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows that training has not seen, some numbers missing where the library takes that; and its answers."""
    rows = data[test_sklearn.TRAINED :][:ROWS].copy()
    if isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and "forest" in str(type(model)).lower():
        rows[np.random.default_rng(1).random(rows.shape) < 0.1] = np.nan
    known = getattr(model, "predict_proba", getattr(model, "decision_function", model.predict))
    role = {"predict_proba": "probabilities", "decision_function": "scores"}.get(known.__name__, "prediction")
    if hasattr(rows, "columns"):
        return {name: rows[[name]].to_numpy() for name in rows.columns}, {role: known(rows)}
    return {"input": rows if rows.ndim == 2 else rows.reshape(-1, 1)}, {role: known(rows)}


def main() -> None:
    import joblib

    for name, (make, data, target) in SKLEARN.items():
        with tempfile.TemporaryDirectory() as scratch:
            model = test_sklearn.fitted(make, data, target)
            joblib.dump(model, Path(scratch) / "model")
            graph, trees, given = convert(of_sklearn.SklearnConverter(), Path(scratch), of_sklearn, "_mended")
            known = [
                [key.hex(), down.tolist(), None if left is None else left.tolist()]
                for key, (down, left) in trees.items()
            ]
            keep(f"scikit-learn, {name}", graph, given, {"trees": known}, *of_library(model, data))
    for name, (_, _, data, _) in test_catboost.KINDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            model = test_catboost.trained(name, Path(scratch) / "model")
            graph, loss, given = convert(of_catboost.CatboostConverter(), Path(scratch), of_catboost, "_mend")
            rows = data[400 : 400 + ROWS]
            classes = hasattr(model, "predict_proba")
            found = {"probabilities": model.predict_proba(rows)} if classes else {"prediction": model.predict(rows)}
            keep(f"CatBoost, {name}", graph, given, {"loss": loss}, {"input": rows}, found)
    STORE.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORE, **recorded)


if __name__ == "__main__":
    main()
