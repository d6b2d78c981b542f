"""Trains models of tables and asks their libraries in this process. It runs in an environment of its own.

    python table_library.py DIRECTORY

It writes each model below ``DIRECTORY``, in the file that MLServer and ours read, and prints the names. A line
``MODEL ROWS SECONDS`` from its input is answered by one of JSON: calls per second, and the predictions.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = {"forest": "model.joblib", "xgboost": "model.ubj", "lightgbm": "model.txt"}
FEATURES = 20
TREES = 100


def rows_of(count: int) -> Any:
    """FP32 numbers of a table, the same at each call."""
    import numpy as np

    return np.random.default_rng(28).normal(size=(count, FEATURES)).astype(np.float32)


def write_models(root: Path) -> dict[str, Callable[[Any], Any]]:
    """What predicts, by model."""
    import joblib
    import lightgbm
    import xgboost
    from sklearn.ensemble import RandomForestRegressor

    rows = rows_of(5000)
    wanted = rows[:, 0] * rows[:, 1] + rows[:, 2]
    forest = RandomForestRegressor(TREES, max_depth=8, random_state=0).fit(rows, wanted)
    boosted = xgboost.XGBRegressor(n_estimators=TREES, max_depth=6).fit(rows, wanted)
    light = lightgbm.LGBMRegressor(n_estimators=TREES, verbose=-1).fit(rows, wanted).booster_
    for (name, file), save in zip(
        FILES.items(), (lambda path: joblib.dump(forest, path), boosted.save_model, light.save_model), strict=True
    ):
        path = root / name / "1" / file
        path.parent.mkdir(parents=True)
        save(path)
    return {"forest": forest.predict, "xgboost": boosted.predict, "lightgbm": light.predict}


def main() -> None:
    models = write_models(Path(sys.argv[1]))
    print(json.dumps([*models]), flush=True)
    for line in sys.stdin:
        name, count, seconds = line.split()
        predict, rows, calls, taken = models[name], rows_of(int(count)), 0, 0.0
        answer, start = predict(rows), time.perf_counter()
        while not calls or taken < float(seconds):
            predict(rows)
            calls, taken = calls + 1, time.perf_counter() - start
        print(json.dumps({"rate": calls / taken, "answer": answer.tolist()}), flush=True)


if __name__ == "__main__":
    main()
