"""The parameters."""

import pytest
from repoagent_license.options import parse_parameters

from repoagent.api import InvalidArgumentError, Parameters, UnsafePathError

KEY = ("public_key", "file:/k")


@pytest.mark.parametrize(
    "pairs",
    [
        [("url", "https://example.com/models")],
        [("url", "http://127.0.0.1:8080/"), ("timeout", "0.5"), ("token", "env:TOKEN")],
        [("url", "http://[::1]:8080/")],
        [("license", "license.json"), KEY],
        [("license", "legal/license.json"), ("trust_root", "vendor")],
    ],
)
def test_good_parameters_are_read(pairs: list[tuple[str, str]]) -> None:
    options = parse_parameters(Parameters(pairs))
    assert (options.url or options.license) == pairs[0][1]
    assert options.timeout == float(dict(pairs).get("timeout", 5))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "give one of the parameters 'url' and 'license'"),
        ([("url", "https://x"), ("license", "l")], "give one of the parameters 'url' and 'license'"),
        ([("license", "l")], "the license's key is missing"),
        ([("license", "l"), KEY, ("trust_root", "v")], "give one of 'trust_root' and 'public_key'"),
        ([("lizenz", "l")], "unknown parameter 'lizenz'; did you mean 'license'?"),
        ([("url", "http://example.com")], "must begin with https://"),
        ([("url", "file:///etc/passwd")], "must begin with https://"),
        ([("url", "https://me:secret@example.com")], "holds a user name or password"),
        ([("url", "https://x"), ("timeout", "0")], "must be seconds above 0 and at most 60, not '0'"),
        ([("url", "https://x"), ("timeout", "soon")], "not 'soon'"),
        ([("url", "https://x"), ("timeout", "nan")], "not 'nan'"),
    ],
)
def test_bad_parameters_are_refused(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_parameters(Parameters(pairs))


@pytest.mark.parametrize("path", ["", "/etc/license", "../license", "a/../../l", "a//b", "./l", "a\0b"])
def test_a_license_outside_of_the_model_is_refused(path: str) -> None:
    with pytest.raises(UnsafePathError, match="plain path in the model's directory"):
        parse_parameters(Parameters([("license", path), KEY]))
