"""Parameters, read into options."""

import pytest
from repoagent_convert.options import Level, Options, parse_parameters

from repoagent.api import InvalidArgumentError, Parameters, UnsafePathError


def test_nothing_given_means_extended_in_place() -> None:
    assert parse_parameters({}) == Options(Level.EXTENDED, None, keep_original=False)


def test_parameters_are_read_and_the_last_of_repeats_counts() -> None:
    pairs = [("level", "basic"), ("level", "ALL"), ("input", "net.onnx"), ("keep_original", "True")]
    assert parse_parameters(Parameters(pairs)) == Options(Level.ALL, "net.onnx", keep_original=True)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("lvl", "all", "unknown parameter 'lvl'; did you mean 'level'?"),
        ("nonsense", "", "unknown parameter 'nonsense'; expected one of: level, input, keep_original"),
        ("level", "extend", "parameter 'level': unknown level 'extend'; did you mean 'extended'?"),
        ("level", "99", "parameter 'level': unknown level '99'; expected one of: basic, extended, all"),
        (
            "keep_original",
            "si",
            "parameter 'keep_original': 'si' is no truth value; expected one of: true, 1, false, 0",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_a_suggestion(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_parameters({key: value})
    assert str(caught.value) == text


@pytest.mark.parametrize("name", ["", "..", "../model.onnx", "1/model.onnx", "/etc/passwd", "a\0"])
def test_the_input_is_a_plain_file_name(name: str) -> None:
    with pytest.raises(UnsafePathError, match="parameter 'input'"):
        parse_parameters({"input": name})
