"""XGBoost's binary files: accepted whole, and refused where anything is left over or missing."""

from pathlib import Path

import numpy as np
import pytest
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import ACCEPTED, Format, MalformedError

STORE = np.load(Path(__file__).parents[3] / "tests/converters/trees/data/models.npz")
FILES = sorted(name.removesuffix("/file") for name in STORE.files if name.endswith("/file"))
MODEL = bytes(STORE["xgb-categories-100.ubj/file"])


@pytest.mark.parametrize("name", FILES)
def test_models_of_trees_are_accepted(name: str) -> None:
    found = detect("model.bin", bytes(STORE[f"{name}/file"]))
    assert found is (Format.XGBOOST if name.endswith(".ubj") else Format.TEXT)
    assert found in ACCEPTED


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (MODEL + b"\0", "1 bytes follow the model of XGBoost"),
        (MODEL[:-1], "begins as a model of XGBoost, and byte"),
        (MODEL[:5000], "begins as a model of XGBoost, and byte"),
        (MODEL.replace(b"[$d#", b"[$Z#", 1), "begins as a model of XGBoost, and byte"),
        (b"{U\7learner[#L" + b"\x7f" + b"\xff" * 7, "begins as a model of XGBoost, and byte"),
        (b"{U\7learnerSL" + b"\xff" * 8 + b"}", "begins as a model of XGBoost, and byte"),
        (b"{U\7learnerSL" + b"\xff" * 8, "begins as a model of XGBoost, and byte"),
        (b"{U\7learner" + b"[" * 100 + b"]" * 100 + b"}", "more than 32 in one another"),
    ],
)
def test_what_is_cut_off_or_has_more_in_it_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(MalformedError, match=text):
        detect("1/model.ubj", data)


def test_another_object_is_not_one_of_xgboost() -> None:
    assert detect("model.ubj", b"{U\5othermU\1x\0") is Format.UNKNOWN
