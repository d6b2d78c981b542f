"""Damaged files of the formats that libraries read: an error, or a model that was compared, in bounded memory and time.

They need the libraries: ``make models`` installs them and runs this.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.convert.tests import damaged
from agents.convert.tests.networks.conftest import MADE, needs_models
from tests.extent import in_full

pytestmark = [pytest.mark.slow, pytest.mark.timeout(in_full(14 * 3600, otherwise=1800))]
COUNT = in_full(10_000, otherwise=25)
MOST_KIB = 2 << 20


def catboost(place: Path) -> Path:
    library: Any = pytest.importorskip("catboost")
    model = library.CatBoostClassifier(iterations=5, verbose=0, allow_writing_files=False, thread_count=1)
    model.fit([[0, 1], [1, 0], [2, 2], [3, 1]], [0, 1, 0, 1]).save_model(str(place / "model.cbm"))
    return place / "model.cbm"


def skops(place: Path) -> Path:
    library: Any = pytest.importorskip("skops.io")
    from sklearn.ensemble import RandomForestClassifier

    library.dump(RandomForestClassifier(3).fit([[0, 1], [1, 0], [2, 2]], [0, 1, 0]), place / "model.skops")
    return place / "model.skops"


def program(place: Path) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from agents.convert.tests.networks import test_pt2

    test_pt2.save(test_pt2.KINDS["MLP"], place / "model.pt2")
    return place / "model.pt2"


def made(name: str, file: str) -> Any:
    return lambda _: MADE / "networks" / name / file


FILES: dict[str, Any] = {
    "tables.catboost:CatboostConverter": catboost,
    "tables.sklearn:SkopsConverter": skops,
    "networks.pt2:Pt2Converter": program,
    "networks.tensorflow:KerasConverter": made("Keras, MLP", "model.keras"),
    "networks.tensorflow:SavedModelConverter": made("SavedModel, module", "saved_model.pb"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_models) if "tensorflow" in name else name for name in FILES]
)
def test_a_damaged_file_is_an_error_or_a_model_that_was_compared(name: str, tmp_path: Path) -> None:
    python = f"{MADE}/tensorflow/bin/python" if "tensorflow" in name else sys.executable
    file = FILES[name](tmp_path)
    command = [python, "-W", "ignore", damaged.__file__, f"repoagent_convert.{name}", str(file), str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found.pop("KiB") < MOST_KIB
    assert sum(found.values()) == COUNT
    assert not found.keys() & {"worse", "too long"}
    assert "tables" not in name or "errors" not in found
