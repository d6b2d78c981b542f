"""What the page of converters shows, executed, and what it must name."""

import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from repoagent.api import Conversion, ConversionJob, ConversionPlan, ConversionSource, Converter, Product
from repoagent.loader.converting.conversion import LoadConversion
from repoagent.testing import AgentHarness, ModelRepo

PAGE = "docs/reference/converters.md"


def _titled(page: Any, title: str) -> str:
    (body,) = [block.body for block in page.blocks() if block.title == title]
    return str(body)


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
