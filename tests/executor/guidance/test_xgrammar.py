"""The XGRAMMAR backend: without torch, beside a program's own xgrammar, and what xgrammar leaves open."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from repoagent.executor import GuidedDecodingConfig, GuidedDecodingParams
from repoagent.executor.guidance import create_guides, xgrammar_core
from repoagent.executor.guidance.vocabulary import Vocabulary
from repoagent.executor.guidance.xgrammar_backend import XgrammarFactory
from repoagent.executor.types.errors import CheckError, UnsupportedFeatureError

Kind = GuidedDecodingParams.GuideType
Backend = GuidedDecodingConfig.GuidedDecodingBackend
# One token for each byte after the end token, and one of two bytes.
VOCABULARY = Vocabulary([b"<end>", *(bytes([byte]) for byte in range(256)), b'":'], (0,), frozenset({0}))


def _allowed(guide: GuidedDecodingParams, written: bytes) -> set[bytes]:
    """The tokens that may follow a text."""
    matcher = XgrammarFactory(VOCABULARY).create(guide)
    for byte in written:
        matcher.accept(1 + byte)
    row = np.zeros(len(VOCABULARY.tokens), np.float32)
    matcher.mask(row)
    return {VOCABULARY.tokens[token] for token in np.flatnonzero(row == 0)}


def test_what_a_regular_expression_allows() -> None:
    guide = GuidedDecodingParams(Kind.REGEX, "a[bc]{1,2}")
    assert _allowed(guide, b"") == {b"a"}
    assert _allowed(guide, b"a") == {b"b", b"c"}
    assert _allowed(guide, b"ab") == {b"b", b"c", b"<end>"}
    assert _allowed(guide, b"abc") == {b"<end>"}


def test_tokens_of_several_bytes_are_allowed_where_all_fit() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
    guide = GuidedDecodingParams(Kind.JSON_SCHEMA, json.dumps(schema))
    assert b'":' in _allowed(guide, b'{"a')
    assert b'":' not in _allowed(guide, b'{"')


def test_strings_hold_no_control_characters() -> None:
    guide = GuidedDecodingParams(Kind.JSON_SCHEMA, '{"type": "string", "maxLength": 3}')
    allowed = _allowed(guide, b'"')
    assert b"x" in allowed
    assert not allowed & {bytes([byte]) for byte in range(0x20)}


def test_a_fork_goes_its_own_way() -> None:
    guide = XgrammarFactory(VOCABULARY).create(GuidedDecodingParams(Kind.REGEX, "ab|ac"))
    guide.accept(1 + ord("a"))
    other = guide.fork()
    guide.accept(1 + ord("b"))
    other.accept(1 + ord("c"))
    with pytest.raises(CheckError, match="does not allow token 100 here"):
        other.accept(1 + ord("c"))


def test_structural_tags_in_the_present_form() -> None:
    tag = {"begin": "<f>", "content": {"type": "regex", "pattern": "[0-9]"}, "end": "</f>"}
    guide = GuidedDecodingParams(
        Kind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {"type": "tag"} | tag})
    )
    assert _allowed(guide, b"<f>") == {bytes([byte]) for byte in b"0123456789"}
    assert _allowed(guide, b"<f>7") == {b"<"}


@pytest.mark.parametrize("name", ["xgrammar", "tvm_ffi"])
def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = find_spec
    monkeypatch.setattr(xgrammar_core, "find_spec", lambda asked: None if asked == name else found(asked))
    xgrammar_core.core.cache_clear()
    config = GuidedDecodingConfig(Backend.XGRAMMAR, ["a"], None, [0])
    with pytest.raises(UnsupportedFeatureError, match=rf"{name} is not installed: pip install --no-deps xgrammar=="):
        create_guides(config, 2, ())


@pytest.mark.slow
def test_torch_and_the_package_xgrammar_are_not_imported() -> None:
    """In a process of its own; ``torch`` set to None cannot be imported even where it is installed."""
    script = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from repoagent.executor import GuidedDecodingConfig, GuidedDecodingParams
from repoagent.executor.guidance import create_guides
backend = GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
guides = create_guides(GuidedDecodingConfig(backend, ["a", "b"], None, [0]), 2, ())
guides.create(GuidedDecodingParams(GuidedDecodingParams.GuideType.REGEX, "b")).accept(1)
assert "xgrammar" not in sys.modules
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "ok\n", done.stderr
