"""Every regular expression of the product takes steps in proportion to its text, or its text is short."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hostile.expression_steps import ANYWHERE, worst

ROOT = Path(__file__).parents[2]
PLACES = ("repoagent", "llm/repoagent_llm", "server_stub/repoagent_server", "agents/*/repoagent_*")
FOLDERS = sorted(str(path.relative_to(ROOT)) for place in PLACES for path in ROOT.glob(place) if path.is_dir())
METHODS = ANYWHERE | {"match", "fullmatch"}


class Found(NamedTuple):
    place: str
    pattern: str | bytes | None
    flags: int
    method: str


def _value(node: ast.expr, names: dict[str, str | bytes]) -> str | bytes | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, names), _value(node.right, names)
        return left + right if isinstance(left, str) and isinstance(right, str) else None
    if isinstance(node, ast.JoinedStr):
        texts = [_value(p.value if isinstance(p, ast.FormattedValue) else p, names) for p in node.values]
        return "".join(text for text in texts if isinstance(text, str)) if None not in texts else None
    return None


def _flags(call: ast.Call) -> int:
    named = [
        node.attr
        for argument in [*call.args[1:], *(k.value for k in call.keywords)]
        for node in ast.walk(argument)
        if isinstance(node, ast.Attribute)
    ]
    return sum({getattr(re, name) for name in named if name.isupper() and hasattr(re, name)})


def _function(call: ast.Call) -> str | None:
    """Which function of `re` is called with a pattern."""
    at = call.func
    if isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name) and at.value.id == "re" and call.args:
        return at.attr if at.attr in METHODS | {"compile"} else None
    return None


def _in_file(path: Path) -> Iterator[Found]:
    text = path.read_text()
    names: dict[str, str | bytes] = {}
    holders: dict[int, str] = {}
    calls = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                holders[id(node.value)] = target.id
                if (value := _value(node.value, names)) is not None:
                    names[target.id] = value
        if isinstance(node, ast.Call) and (function := _function(node)):
            calls.append((node, function))
    for call, function in calls:
        name = holders.get(id(call), "")
        used = {function} & METHODS
        if name and not used:
            used = set(re.findall(rf"\b{name}\.(\w+)", text)) & METHODS
        place = f"{path.relative_to(ROOT)} {name or ast.get_source_segment(text, call.args[0])}"
        for method in ({"search"} if used & ANYWHERE else set()) | (used - ANYWHERE) or {"search"}:
            yield Found(place, _value(call.args[0], names), _flags(call), method)


def _in_folder(folder: str) -> Iterator[Found]:
    return (found for path in sorted((ROOT / folder).rglob("*.py")) for found in _in_file(path))


def _all() -> list[Found]:
    return [found for folder in FOLDERS for found in _in_folder(folder)]


BUILT = {
    'agents/convert/repoagent_convert/networks/tensorflow.py rf"{re.escape(made)}(_\\d+)?"': "a text, then one repeat",
    'llm/repoagent_llm/lora/peft.py rf"(.*\\.)?({pattern})"': "_PLAIN bounds it",
    'repoagent/public_text.py _BEFORE + re.escape(text.rstrip("/")) + _TAIL': "a path, a tail up to a blank or a quote",
    'repoagent/testing/contract/__init__.py rf"(?<![\\w-]){name}(?![\\w-])"': "a parameter's name, no repeats",
    "server_stub/repoagent_server/access/clients.py translate(pattern)": "fnmatch makes each star an atomic group",
    "server_stub/repoagent_server/flags/config_file.py found": "the operator's own file, when it is wrong",
    'server_stub/repoagent_server/flags/config_file.py rf"(?<!\\w){re.escape(text)}(?!\\w)"': "one text, no repeats",
    "server_stub/repoagent_server/flags/ineffective_flags.py pattern": "the operator's own flags",
    "server_stub/repoagent_server/handlers/headers.py pattern.removeprefix(_EXACT)": "the operator's own expression",
    "server_stub/repoagent_server/openai/reasoning.py _ANY": "marks, no repeats",
    "server_stub/repoagent_server/shared/merging.py rest": "the name of a label, no repeats",
    "server_stub/repoagent_server/http/service.py route.pattern": "the table of routes; a request line is bounded",
    'agents/checksum/repoagent_checksum/json_listings.py f"[0-9A-Fa-f]{{{algorithm.hex_length}}}"': "a fixed count",
    'agents/verify/repoagent_verify/statement.py rf"[0-9a-fA-F]{{{2 * DIGEST_SIZES[hash_type]}}}"': "a fixed count",
    """agents/decrypt/repoagent_decrypt/patterns.py f"[{'^' if negate else ''}{inner}]\"""": "one character",
}
"""Expressions that are built from other texts, and why none can take long."""

BOUNDED = {
    "agents/decrypt/repoagent_decrypt/patterns.py _TOKEN": "Patterns.of takes at most 4096 characters",
    r"agents/scan/repoagent_scan/formats/pickles.py b'\\s*[-+]?[0-9A-Fa-fxXoO_]+\\s*'": "used by fullmatch alone",
    r"agents/scan/repoagent_scan/formats/pickles.py b'\\s*[-+]?[0-9A-Fa-fxXoO_]+L?\\s*'": "used by fullmatch alone",
    "server_stub/repoagent_server/processes/desk.py _TEXTS": "of labels that _LINE has matched",
}
"""Expressions that read again and again, but never much, and why."""

FAULTS = [
    (r"(a+)+b", "match"),
    (r"a*a*b", "match"),
    (r"<([^>]*)>", "search"),
    (r"(\w+)=", "search"),
    (r"(a|a)*b", "fullmatch"),
    (r"x(?:.*?y)*z", "match"),
    (r"-----BEGIN.*?-----END", "search"),
    (r"eyJ[\w-]+\.x", "search"),
]
SOUND = [(r"(?>a+)b", "match"), (r"a*+b", "match"), (r"<([^<>]*)>", "search"), (r"(?<!\w)(\w++)=", "search")]


@pytest.fixture(autouse=True)
def deep() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize(("pattern", "method"), FAULTS)
def test_the_count_finds_what_takes_long(pattern: str, method: str) -> None:
    assert worst(pattern, 0, method)


@pytest.mark.parametrize(("pattern", "method"), SOUND)
def test_the_count_lets_pass_what_does_not(pattern: str, method: str) -> None:
    assert worst(pattern, 0, method) is None


def test_every_expression_that_is_built_has_its_reason() -> None:
    assert {found.place for found in _all() if found.pattern is None} == set(BUILT)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_expression_of_the_product_takes_long(folder: str) -> None:
    taking_long = {
        f"{found.place} ({found.method})": text
        for found in _in_folder(folder)
        if found.pattern is not None
        and found.place not in BOUNDED
        and (text := worst(found.pattern, found.flags, found.method))
    }
    assert not taking_long
