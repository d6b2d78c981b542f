"""What the reference of the agents' API shows, executed, and what it and the testing kit's page must name."""

import inspect
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from repoagent.api import Conversion, ConversionJob, ConversionPlan, ConversionSource, Converter, Product
from repoagent.config import read_text
from repoagent.loader.chain import LoadedChain
from repoagent.loader.conversion import LoadConversion
from repoagent.loader.discovery import AgentRegistry
from repoagent.testing import STORAGE_POINTS, AgentContract, AgentHarness, FaultInjection, ModelRepo, Outcome, plugin
from repoagent.testing.contract.subject import Subject
from tests.docs.conftest import AGENTS, parameters_of

pytest_plugins = ["pytester"]
CONFIG = 'max_batch_size: 4 input [{ name: "x" data_type: TYPE_FP32 dims: [3] }, { name: "y" data_type: TYPE_FP32 }]'


def _titled(page: Any, title: str) -> str:
    (body,) = [block.body for block in page.blocks() if block.title == title]
    return str(body)


def test_the_example_that_rewrites_inputs_does(pages: dict[str, Any], tmp_path: Path, model_repo: ModelRepo) -> None:
    module: dict[str, Any] = {}
    exec(_titled(pages["docs/reference/agents-api.md"], "Rewriting the inputs of a model"), module)
    model = model_repo.add("m", {"1/model.onnx": b"weights"}, agents=["batchless"], config=CONFIG)
    before = (model / "config.pbtxt").read_text()
    with AgentHarness(tmp_path / "own", {"batchless": module["BatchlessAgent"]}) as harness:
        outcome = harness.run(model)
    assert outcome.error is None
    assert outcome.config is not None
    config = read_text(outcome.config)
    assert config.max_batch_size == 0
    assert [list(tensor.dims) for tensor in config.input] == [[-1, 3], [-1]]
    assert outcome.files["1/model.onnx"] == b"weights"
    assert (model / "config.pbtxt").read_text() == before


@pytest.mark.slow
def test_the_example_of_an_unload_that_an_agent_asks_for_passes(
    pages: dict[str, Any], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_licence=_titled(pages["docs/reference/testing.md"], "test_licence.py"))
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:cloudcoil").assert_outcomes(passed=1)


@pytest.mark.parametrize("name", [name for name in vars(LoadedChain) if not name.startswith("_")])
def test_every_member_of_a_loaded_chain_is_on_the_page_of_the_testing_kit(name: str, pages: dict[str, Any]) -> None:
    member = inspect.getattr_static(LoadedChain, name)
    parameters = list(inspect.signature(member).parameters)[1:] if inspect.isfunction(member) else None
    wanted = f"`chain.{name}`" if parameters is None else f"`chain.{name}({', '.join(parameters)})`"
    rows = [line for line in pages["docs/reference/testing.md"].text.splitlines() if line.startswith("| `")]
    assert any(wanted in row.partition(" | ")[0] for row in rows)


@pytest.mark.parametrize("name", [*inspect.signature(AgentHarness).parameters])
def test_every_argument_of_the_harness_is_on_the_page_of_the_testing_kit(name: str, pages: dict[str, Any]) -> None:
    text = pages["docs/reference/testing.md"].text
    (call,) = [part.partition(")`")[0] for part in text.split("`AgentHarness(directory")[1:]]
    assert name in f"directory{call}"


@pytest.mark.parametrize("word", ["`key`", "`build(directory)`"])
def test_what_the_cache_takes_and_gives_is_on_the_page(word: str, pages: dict[str, Any]) -> None:
    text = pages["docs/reference/agents-api.md"].text
    assert word in text.partition("## Cached results")[2].partition("\n## ")[0]


# The page of the testing kit has everything that there is.

HELPERS = {
    "accepts_the_good_model",
    "calls_in_load",
    "name",
    "open_harness",
    "run_bad",
    "run_good",
    "try_good_model",
    "write_model",
}
"""What the contract's own tests use."""


@pytest.fixture
def rows(pages: dict[str, Any]) -> list[str]:
    """The rows of the page's tables, without their first bar."""
    lines = pages["docs/reference/testing.md"].text.splitlines()
    return [line.removeprefix("| ") for line in lines if line.startswith("| `")]


def public(kind: type) -> list[str]:
    names = {*vars(kind), *inspect.get_annotations(kind)}
    return sorted(name for name in names if not name.startswith("_"))


def first_cell(row: str) -> str:
    return row.partition(" |")[0]


@pytest.mark.parametrize("name", [*plugin.__all__, *STORAGE_POINTS])
def test_every_fixture_and_storage_point_has_a_row(name: str, rows: list[str]) -> None:
    assert f"`{name}`" in [first_cell(row) for row in rows]


@pytest.mark.parametrize("name", [name for name in dir(AgentContract) if name.startswith("test_")])
def test_every_test_of_the_contract_has_a_row(name: str, rows: list[str]) -> None:
    assert f"`{name}`" in [first_cell(row) for row in rows]


@pytest.mark.parametrize("name", sorted(set(public(Subject)) - HELPERS))
def test_every_attribute_of_the_contract_has_a_row(name: str, rows: list[str]) -> None:
    assert any(f"`{name}`" in first_cell(row) for row in rows)


@pytest.mark.parametrize("name", public(Outcome))
def test_every_member_of_an_outcome_has_a_row(name: str, rows: list[str]) -> None:
    assert any(f"`{name}{end}" in first_cell(row) for end in "`(" for row in rows)


@pytest.mark.parametrize("name", ["at", "fail", "cancel", "kill", "reset"])
def test_every_kind_of_fault_has_a_row_with_its_parameters(name: str, rows: list[str]) -> None:
    parameters = list(inspect.signature(getattr(FaultInjection, name)).parameters)[1:]
    (row,) = [row for row in rows if row.startswith(f"`{name}(")]
    assert [parameter for parameter in parameters if parameter not in first_cell(row)] == []


# What the page of converters shows, executed, and what it must name.

PAGE = "docs/reference/converters.md"


@pytest.fixture
def shown(pages: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The converter of the page, in a module of its own."""
    module = ModuleType("shown_converter")
    exec(_titled(pages[PAGE], "A converter"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_the_converter_converts(shown: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "out").mkdir()
    converter: Converter = shown.UpperConverter()
    plan = converter.plan(ConversionSource(tmp_path, "a.txt", "1/a.txt"), {"suffix": "!"})
    product = converter.build(ConversionJob(tmp_path, tmp_path / "out", plan.settings))
    assert (tmp_path / "out" / plan.output).read_text() == "ABC!"
    assert product == Product({"letters": 3}, ("all capitals",))


def test_the_agent_converts(shown: ModuleType, pages: dict[str, Any], tmp_path: Path, model_repo: ModelRepo) -> None:
    module: dict[str, Any] = {}
    text = _titled(pages[PAGE], "An agent that converts")
    text = text.replace('"onnx", "optimized", source, {"level": "basic"}', '"text", "upper", source, {}')
    exec(text.replace("model.onnx", "a.txt"), module)
    model = model_repo.add("m", {"1/a.txt": b"abc"}, agents=["optimise"], config="max_batch_size: 1")
    monkeypatched = type("Here", (shown.UpperConverter,), {"in_child": False})
    vars(shown)["Here"] = monkeypatched
    converters = {("text", "upper"): "shown_converter:Here"}
    with AgentHarness(tmp_path / "own", {"optimise": module["OptimiseAgent"]}, converters=converters) as harness:
        outcome = harness.run(model)
    assert outcome.error is None
    assert outcome.files["1/model.upper"] == b"ABC"
    assert 'backend: "upper"' in outcome.config


@pytest.mark.parametrize(
    "name",
    [
        *(name for kind in (Converter, Conversion) for name in vars(kind) if not name.startswith("_")),
        *(field.name for kind in (ConversionJob, ConversionPlan, Product) for field in fields(kind)),
    ],
)
def test_every_member_is_on_the_page(name: str, pages: dict[str, Any]) -> None:
    assert f"`{name}" in pages[PAGE].text


def test_the_loaders_conversion_has_what_the_protocol_has() -> None:
    assert {name for name in vars(Conversion) if not name.startswith("_")} <= set(vars(LoadConversion))


# Every agent, and every parameter of it, is documented where its user looks.


@pytest.mark.parametrize("agent", AGENTS)
def test_every_parameter_of_an_agent_has_a_row_in_its_readme(agent: str, pages: dict[str, Any]) -> None:
    rows = [line for line in pages[f"agents/{agent}/README.md"].text.splitlines() if line.startswith("| ")]
    assert [name for name in parameters_of(agent) if not any(f"`{name}`" in row for row in rows)] == []


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_in_the_readme_of_the_project(agent: str, pages: dict[str, Any]) -> None:
    assert f"(agents/{agent}/README.md)" in pages["README.md"].text


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_offered_by_its_package(agent: str) -> None:
    assert AgentRegistry(None).find(agent).distribution == f"repoagent-{agent}"
