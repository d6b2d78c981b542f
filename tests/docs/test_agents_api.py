"""What the reference of the agents' API shows, executed, and what it and the testing kit's page must name."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import read_text
from repoagent.loader.chain import LoadedChain
from repoagent.testing import AgentHarness, ModelRepo

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
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


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
