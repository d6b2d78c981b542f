"""Parameters, read into options."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from repoagent_convert.agent import Options, parse_parameters
from repoagent_convert.plugin import register_converters

from repoagent.api import AgentModel, ConverterOption, InvalidArgumentError, Parameters, UnsafePathError


def model(*pairs: tuple[str, str]) -> AgentModel:
    """A model of a server with these converters, whose only option is ``level``."""
    converter = SimpleNamespace(options={"level": ConverterOption("basic", "how far")})
    found: Any = SimpleNamespace(converters=pairs, converter=lambda source, target: converter)
    return cast(AgentModel, found)


ONNX = model(("onnx", "optimized"), ("onnx", "tensorrt"), ("decoder", "tensorrt"), ("checkpoint", "decoder"))


def test_nothing_given_means_an_optimised_graph_in_place() -> None:
    assert parse_parameters({}, ONNX) == Options("onnx", "optimized", None, keep_original=False)


def test_parameters_are_read_and_the_last_of_repeats_counts() -> None:
    pairs = [("level", "basic"), ("level", "all"), ("input", "net.onnx"), ("keep_original", "True")]
    wanted = Options("onnx", "optimized", "net.onnx", keep_original=True, rest={"level": "all"})
    assert parse_parameters(Parameters(pairs), ONNX) == wanted


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"to": "tensorrt"}, "onnx"),
        ({"to": "tensorrt", "from": "decoder"}, "decoder"),
        ({"to": "decoder"}, "checkpoint"),
    ],
)
def test_the_source_is_onnx_or_the_only_one_there_is(given: dict[str, str], source: str) -> None:
    assert parse_parameters(given, ONNX).source_format == source


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("lvl", "all", "unknown parameter 'lvl'; did you mean 'level'?"),
        ("nonsense", "", "unknown parameter 'nonsense'; known: to, from, input, keep_original, level"),
        (
            "keep_original",
            "si",
            "parameter 'keep_original': 'si' is not a truth value; expected one of: true, 1, false, 0",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_a_suggestion(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_parameters({key: value}, ONNX)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", ["", "..", "../model.onnx", "1/model.onnx", "/etc/passwd", "a\0"])
def test_the_input_is_a_plain_file_name(name: str) -> None:
    with pytest.raises(UnsafePathError, match="parameter 'input'"):
        parse_parameters({"input": name}, ONNX)


def test_the_readme_names_every_format_that_is_converted() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (row,) = [line for line in readme.splitlines() if line.startswith("| `from` |")]
    refused = ("repoagent_convert.frameworks:",)
    sources = {pair[0] for pair, target in register_converters().items() if not target.startswith(refused)}
    assert sources - set(re.findall(r"`([\w-]+)`", row)) == set()
