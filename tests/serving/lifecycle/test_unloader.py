"""What models leave behind when they go: the memory of a process of its own, with a core in it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "many_models.py"
MODELS = 60


@pytest.fixture
def many_models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("many_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "many_models", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries give memory back by themselves, or not at all")
def test_models_that_have_gone_leave_little_memory_and_no_thread(many_models: ModuleType, tmp_path: Path) -> None:
    row = many_models.loaded(tmp_path, MODELS)
    assert row["models"] == MODELS
    assert row["MiB"] > MODELS  # 1 MB each, at least.
    assert row["MiB after"] < row["MiB"] / 4
    assert row["threads"] < 10
