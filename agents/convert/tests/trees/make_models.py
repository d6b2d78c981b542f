"""Trains models with XGBoost and LightGBM, and records their files and what they answer: ``make models``.

The tests have neither library: they read ``data/models.npz``, which has for each file its bytes, rows, what the library
answered to them, and the version that wrote it. With ``--few LIBRARY`` some kinds are added under the version of the
library that is installed, to show that the files of earlier ones are read.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import xgboost as xgb

STORE = Path(__file__).with_name("data") / "models.npz"
MADE = Path(tempfile.mkdtemp())
ROWS, FEATURES, TREES = 1500, 6, 8
random = np.random.default_rng(28)
X = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
SCORE = X[:, 0] * 2 + X[:, 1] ** 2 - X[:, 2] * X[:, 3] + random.normal(size=ROWS) * 0.3
BINARY = (SCORE.mean() < SCORE).astype(int)
THREE = np.digitize(SCORE, np.quantile(SCORE, [0.3, 0.7]))
COUNTS = np.maximum(0, SCORE + 3).round()
WITH_NAN = np.where(random.random(X.shape) < 0.1, np.nan, X).astype(np.float32)
WITH_ZEROS = np.where(random.random(X.shape) < 0.3, 0, X).astype(np.float32)
WITH_CATEGORY = X.copy()
WITH_CATEGORY[:, 0] = random.integers(0, 40, ROWS)
BY_CATEGORY = ((WITH_CATEGORY[:, 0] % 3 == 0) ^ (X[:, 1] > 0)).astype(int)
GROUPS = [30] * (ROWS // 30)

recorded: dict[str, Any] = {}


def asked(data: Any) -> Any:
    """Rows that training has not seen, and harder ones: missing, unknown, negative and broken categories."""
    rows = data[:60].copy()
    rows[:20] += random.normal(size=(20, FEATURES)).astype(np.float32) * 0.1
    rows[20:30, 0] = [-1, -0.5, 0.5, 3.7, 39, 40, 1e6, np.nan, 0, 2]
    rows[30:40, :] = np.where(random.random((10, FEATURES)) < 0.3, np.nan, rows[30:40, :])
    rows[40:45, 1:] = 0
    rows[45:50] = np.array([1e-36, -1e-36, 1e-35, -1e-35, 1e-30], np.float32)[:, None]
    return rows


def keep(path: Path, library: str, rows: Any, found: Any) -> None:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    parts = {"file": content, "rows": rows, "answers": np.asarray(found, np.float64), "library": np.array(library)}
    recorded.update({f"{path.name}/{part}": value for part, value in parts.items()})


def keep_xgboost(path: Path, rows: Any, found: Any) -> None:
    keep(path, f"xgboost {xgb.__version__}", rows, found)


def xgboost_model(name: str, params: dict[str, Any], data: Any, target: Any, **more: Any) -> None:
    ending, rounds, group = more.pop("ending", "ubj"), more.pop("rounds", TREES), more.pop("group", None)
    base = more.pop("bounds", None)
    matrix = xgb.DMatrix(data, target, **more)
    if group:
        matrix.set_group(group)
    if base is not None:
        matrix.set_float_info("label_lower_bound", base)
        matrix.set_float_info("label_upper_bound", base)
    booster = xgb.train({"nthread": 1, "max_depth": 3, "seed": 1, **params}, matrix, rounds)
    path = MADE / f"{name}.{ending}"
    booster.save_model(path)
    rows = asked(data)
    if params.get("objective") == "multi:softmax":
        booster.set_param({"objective": "multi:softprob"})
    keep_xgboost(path, rows, booster.predict(xgb.DMatrix(rows, **more)))


def early_stopped() -> None:
    matrix, check = xgb.DMatrix(X[:1000], BINARY[:1000]), xgb.DMatrix(X[1000:], 1 - BINARY[1000:])
    params = {"nthread": 1, "objective": "binary:logistic", "num_parallel_tree": 2, "subsample": 0.7}
    booster = xgb.train(params, matrix, 8, evals=[(check, "check")], early_stopping_rounds=4, verbose_eval=False)
    path = MADE / "xgb-early-stopping.json"
    booster.save_model(path)
    rows = asked(X)
    best = booster.predict(xgb.DMatrix(rows), iteration_range=(0, booster.best_iteration + 1))
    keep_xgboost(path, rows, best)


def xgboost_models(named: Callable[[str], str]) -> None:
    for objective, target in {
        "binary:logistic": BINARY,
        "multi:softprob": THREE,
        "reg:squarederror": SCORE * 100 + 1000,
        "count:poisson": COUNTS,
    }.items():
        params = {"objective": objective, **({"num_class": 3} if "multi" in objective else {})}
        for ending in ("json", "ubj"):
            xgboost_model(named(f"xgb-{objective.replace(':', '-')}"), params, X, target, ending=ending)
    category = {"feature_types": ["c"] + ["q"] * (FEATURES - 1), "enable_categorical": True}
    for limit in (1, 100):
        params = {"objective": "binary:logistic", "max_cat_to_onehot": limit}
        xgboost_model(named(f"xgb-categories-{limit}"), params, WITH_CATEGORY, BY_CATEGORY, **category)


def other_xgboost_models() -> None:
    for objective, target in {
        "reg:logistic": BINARY,
        "binary:logitraw": BINARY,
        "binary:hinge": BINARY,
        "multi:softmax": THREE,
        "reg:squaredlogerror": COUNTS,
        "reg:absoluteerror": SCORE,
        "reg:pseudohubererror": SCORE,
        "reg:quantileerror": SCORE,
        "reg:gamma": COUNTS + 1,
        "reg:tweedie": COUNTS,
        "rank:pairwise": THREE,
        "rank:ndcg": THREE,
        "rank:map": BINARY,
        "survival:cox": COUNTS + 1,
    }.items():
        params: dict[str, Any] = {"objective": objective}
        params |= {"num_class": 3} if "multi" in objective else {}
        params |= {"quantile_alpha": [0.2, 0.8]} if "quantile" in objective else {}
        group = GROUPS if "rank" in objective else None
        xgboost_model(f"xgb-{objective.replace(':', '-')}", params, X, target, group=group)
    aft = {"objective": "survival:aft", "aft_loss_distribution": "normal"}
    xgboost_model("xgb-survival-aft", aft, X, None, bounds=COUNTS + 1)
    binary = {"objective": "binary:logistic"}
    xgboost_model("xgb-missing", binary, WITH_NAN, BINARY)
    xgboost_model("xgb-base-score", {**binary, "base_score": 0.9}, X, BINARY)
    xgboost_model("xgb-feature-names", binary, X, BINARY, feature_names=[f"column {i}" for i in range(FEATURES)])
    xgboost_model("xgb-dart", {**binary, "booster": "dart", "rate_drop": 0.3}, X, BINARY, ending="json")
    xgboost_model("xgb-forest", {**binary, "num_parallel_tree": 6, "subsample": 0.7, "eta": 1}, X, BINARY, rounds=1)
    xgboost_model("xgb-pruned", {**binary, "gamma": 4, "max_depth": 6}, X, BINARY)
    xgboost_model("xgb-lossguide", {**binary, "grow_policy": "lossguide", "max_leaves": 12}, X, BINARY)
    xgboost_model("xgb-two-targets", {"objective": "reg:squarederror"}, X, np.c_[SCORE, -SCORE])
    xgboost_model("xgb-two-labels", binary, X, np.c_[BINARY, THREE > 0])
    xgboost_model("xgb-stumps", {**binary, "max_depth": 1}, X, BINARY)
    early_stopped()
    for name, params in {
        "xgb-refused-gblinear": {"booster": "gblinear", "objective": "reg:squarederror"},
        "xgb-refused-vector-leaf": {"multi_strategy": "multi_output_tree", "objective": "reg:squarederror"},
    }.items():
        xgboost_model(name, params, X, np.c_[SCORE, -SCORE] if "vector" in name else SCORE, ending="json")


def lightgbm_model(name: str, params: dict[str, Any], data: Any, target: Any, **more: Any) -> None:
    settings = {"verbose": -1, "num_threads": 1, "num_leaves": 8, "seed": 1, "deterministic": True}
    booster = lgb.train({**settings, **params}, lgb.Dataset(data, target, **more), TREES)
    path = MADE / f"{name}.txt"
    booster.save_model(path)
    # What training was called with is a third of the file, and has no part in an answer.
    text = path.read_text()
    path.write_text(text[: text.index("\nparameters:")] + "\n")
    rows = asked(data)
    keep(path, f"lightgbm {lgb.__version__}", rows, lgb.Booster(model_file=path).predict(rows.astype(np.float64)))


def lightgbm_models(named: Callable[[str], str]) -> None:
    for objective, target in {"binary": BINARY, "regression": SCORE * 100 + 1000, "poisson": COUNTS}.items():
        lightgbm_model(named(f"lgb-{objective}"), {"objective": objective}, X, target)
    lightgbm_model(named("lgb-multiclass"), {"objective": "multiclass", "num_class": 3}, X, THREE)
    category = {"objective": "binary", "min_data_per_group": 5, "cat_smooth": 1}
    lightgbm_model(named("lgb-categories"), category, WITH_CATEGORY, BY_CATEGORY, categorical_feature=[0])
    lightgbm_model(named("lgb-missing"), {"objective": "binary"}, WITH_NAN, BINARY)


def other_lightgbm_models() -> None:
    for objective, target in {
        "regression_l1": SCORE,
        "huber": SCORE,
        "fair": SCORE,
        "quantile": SCORE,
        "mape": SCORE,
        "gamma": COUNTS + 1,
        "tweedie": COUNTS,
        "cross_entropy": BINARY,
        "cross_entropy_lambda": BINARY,
        "multiclassova": THREE,
        "lambdarank": THREE,
        "rank_xendcg": THREE,
    }.items():
        params: dict[str, Any] = {"objective": objective, **({"num_class": 3} if "class" in objective else {})}
        lightgbm_model(f"lgb-{objective}", params, X, target, group=GROUPS if "rank" in objective else None)
    binary = {"objective": "binary"}
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7}
    lightgbm_model("lgb-forest", {**binary, **forest}, X, BINARY)
    lightgbm_model("lgb-dart", {**binary, "boosting": "dart", "drop_rate": 0.5}, X, BINARY)
    lightgbm_model("lgb-sigmoid", {**binary, "sigmoid": 2.0}, X, BINARY)
    lightgbm_model("lgb-sqrt", {"objective": "regression", "reg_sqrt": True}, X, SCORE)
    lightgbm_model("lgb-zero-as-missing", {**binary, "zero_as_missing": True}, WITH_ZEROS, BINARY)
    lightgbm_model("lgb-no-missing", {**binary, "use_missing": False}, X, BINARY)
    lightgbm_model("lgb-one-leaf", {**binary, "min_data_in_leaf": ROWS}, X, BINARY)
    lightgbm_model("lgb-refused-linear", {"objective": "regression", "linear_tree": True}, X, SCORE)


if __name__ == "__main__":
    few = sys.argv[2:] if sys.argv[1:2] == ["--few"] else []
    if not few:
        xgboost_models(str)
        other_xgboost_models()
        lightgbm_models(str)
        other_lightgbm_models()
    if "xgboost" in few:
        xgboost_models(lambda name: f"{name}-{xgb.__version__}")
    if "lightgbm" in few:
        lightgbm_models(lambda name: f"{name}-{lgb.__version__}")
    STORE.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORE, **(dict(np.load(STORE)) if few else {}), **recorded)
