"""Kinds of models of CatBoost: each answers as the library does, or is refused by name; ``make models`` runs this."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_convert.tables.catboost import CatboostConverter

from repoagent.api import ConversionJob, ConversionSource
from repoagent.beneath import jail
from repoagent.cli.main import program
from repoagent.errors import InvalidArgumentError, UnsupportedError

catboost = pytest.importorskip("catboost")

import onnxruntime as ort  # noqa: E402
from click.testing import CliRunner  # noqa: E402

pytestmark = pytest.mark.slow
random = np.random.default_rng(28)
X = random.normal(size=(600, 5)).astype(np.float32)
NAN = np.where(random.random(X.shape) < 0.1, np.nan, X).astype(np.float32)
THREE = np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5])
COUNTS = np.abs(X[:, 0] * 2).round()
SETTINGS = {"iterations": 10, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any], Any, Any]] = {
    "binary": (catboost.CatBoostClassifier, {}, X, THREE > 0),
    "multiclass": (catboost.CatBoostClassifier, {"loss_function": "MultiClass"}, X, THREE),
    "text labels": (catboost.CatBoostClassifier, {}, X, np.array(["a", "b", "c"])[THREE]),
    "missing": (catboost.CatBoostClassifier, {}, NAN, THREE > 0),
    "focal": (catboost.CatBoostClassifier, {"loss_function": "Focal:focal_alpha=0.5;focal_gamma=2"}, X, THREE > 0),
    "regression": (catboost.CatBoostRegressor, {}, X, X[:, 0] * 3),
    "poisson": (catboost.CatBoostRegressor, {"loss_function": "Poisson"}, X, COUNTS),
    "tweedie": (catboost.CatBoostRegressor, {"loss_function": "Tweedie:variance_power=1.5"}, X, COUNTS),
}


def trained(name: str, path: Path) -> Any:
    kind, settings, data, target = KINDS[name]
    if target.dtype == bool:
        target = target.astype(int)
    model = kind(**SETTINGS, **settings).fit(data[:400], target[:400])
    model.save_model(str(path))
    return model


def build(directory: Path, **options: str) -> tuple[Any, ort.InferenceSession]:
    converter, target = CatboostConverter(), directory / "target"
    target.mkdir()
    given = {name: one.default for name, one in converter.options.items() if one.default is not None} | options
    plan = converter.plan(ConversionSource(directory, "model.cbm", "1/model.cbm"), given)
    product = converter.build(ConversionJob(directory, target, plan.settings))
    return product, ort.InferenceSession((target / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.kinds("accepted", "CatBoost")
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_answers_as_the_library_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, held_out = trained(name, tmp_path / "model.cbm"), KINDS[name][2][400:]
    product, session = build(tmp_path)
    assert "compared with catboost" in product.notes[-1]
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"input": held_out}), strict=True))
    if "prediction" in found:
        np.testing.assert_allclose(found["prediction"].ravel(), model.predict(held_out), rtol=1e-4, atol=1e-4)
        return
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(held_out), atol=1e-5)
    assert (found["label"].ravel() == model.predict(held_out).ravel()).mean() > 0.99


@pytest.mark.kinds("refused by name", "CatBoost")
def test_categories_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [[str(one), float(two)] for one, two in zip(THREE[:100], X[:100, 1], strict=True)]
    model = catboost.CatBoostClassifier(**SETTINGS).fit(rows, THREE[:100] > 0, cat_features=[0])
    model.save_model("model.cbm")
    with pytest.raises(UnsupportedError, match="features of the kind 'cat'"):
        build(tmp_path)


@pytest.mark.kinds("refused by name", "CatBoost")
def test_several_targets_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = catboost.CatBoostRegressor(**SETTINGS, loss_function="MultiRMSE").fit(X, X[:, :2])
    model.save_model("model.cbm")
    with pytest.raises(UnsupportedError, match="the loss 'MultiRMSE', whose graph has other outputs"):
        build(tmp_path)


def test_damaged_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees are whole, and the library raises only once these are looked at."""
    monkeypatch.chdir(tmp_path)
    trained("binary", tmp_path / "model.cbm")
    content = (tmp_path / "model.cbm").read_bytes()
    assert b"model_shrink_mode" in content
    (tmp_path / "model.cbm").write_bytes(content.replace(b"model_shrink_mode", b"model_sjrink_mode"))
    with pytest.raises(InvalidArgumentError, match="is not a model of CatBoost, or is damaged"):
        build(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained("binary", tmp_path / "model.cbm")
    (tmp_path / "model.cbm").write_bytes((tmp_path / "model.cbm").read_bytes()[:-2000])
    with pytest.raises(InvalidArgumentError, match="is not a model of CatBoost, or is damaged"):
        build(tmp_path)


@pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
def test_a_damaged_file_takes_no_more_memory_than_its_size_needs(tmp_path: Path) -> None:
    """CatBoost 1.2.10 writes a graph of 2 ** depth nodes for the depth that a tree states."""
    trained("binary", tmp_path / "model.cbm")
    content = (tmp_path / "model.cbm").read_bytes()
    depths, damaged = struct.pack("<10i", *[6] * 10), struct.pack("<10i", 24, *[6] * 9)
    assert content.count(depths) == 1
    (tmp_path / "model.cbm").write_bytes(content.replace(depths, damaged))
    measured = (
        "import resource, sys; from click.testing import CliRunner; from repoagent.cli.main import program\n"
        "print(CliRunner().invoke(program, ['convert', sys.argv[1]]).exception)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", measured, str(tmp_path / "model.cbm")]
    error, kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "crashed with SIG" in error
    assert int(kib) < 2 << 20


@pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
def test_a_model_is_converted_in_the_jail_without_a_permission(tmp_path: Path) -> None:
    trained("text labels", tmp_path / "model.cbm")
    result = CliRunner().invoke(program, ["convert", str(tmp_path / "model.cbm")])
    assert result.exit_code == 0, result.output
    assert "compared with catboost" in result.stderr
    assert 'name: "label"\n  data_type: TYPE_STRING' in result.stdout
