"""A small ONNX model, and loads of it through the installed agent."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from repoagent.testing import AgentHarness, Outcome
from tests import onnx_models

Load = Callable[..., Outcome]
kinds: "Counter[tuple[str, str]]" = Counter()
"""Framework, and what became of a kind of its models -> how many kinds; ``make models`` prints it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Count a test of one kind, which the mark ``kinds(outcome, framework)`` is for."""
    report = yield
    if report.when == "call" and not report.skipped and (mark := item.get_closest_marker("kinds")):
        outcome, framework = mark.args
        named = {"xgb": "XGBoost", "lgb": "LightGBM"}
        prefix = item.name.partition("[")[2].partition(",")[0].partition("-")[0]
        kinds[framework or named.get(prefix, prefix), outcome if report.passed else "silently wrong"] += 1
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each framework."""
    for framework in sorted({one for one, _ in kinds}):
        counts = (kinds[framework, one] for one in ("accepted", "refused by name", "silently wrong"))
        terminalreporter.write_line("{}: accepted {}, refused by name {}, silently wrong {}".format(framework, *counts))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    with AgentHarness(tmp_path / "harness") as harness:
        yield harness


@pytest.fixture
def load(tmp_path: Path, harness: AgentHarness) -> Load:
    """``load(config, **parameters)``: the model ``tmp_path/source`` goes through ``convert``.

    With ``config=None`` the agent is named by an override, as the model has no configuration then.
    """

    def load(config: str = "max_batch_size: 8", **parameters: str) -> Outcome:
        given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        agents = f'model_repository_agents {{ agents [ {{ name: "convert" {given} }} ] }}'
        root = tmp_path / "source"
        root.mkdir(exist_ok=True)
        (root / "config.pbtxt").write_text(f"{config}\n{agents}\n")
        return harness.run(root)

    return load


@pytest.fixture
def perceptron() -> "onnx.ModelProto":
    """See :func:`tests.onnx_models.perceptron`."""
    return onnx_models.perceptron()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save a model below ``tmp_path/source``, with its weights in the file ``data`` if that is given."""

    def call(model: "onnx.ModelProto", path: str = "1/model.onnx", data: str | None = None) -> Path:
        return onnx_models.save_model(model, tmp_path / "source" / path, data)

    return call
