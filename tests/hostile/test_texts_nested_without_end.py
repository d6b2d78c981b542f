"""T29. How deep a text is nested is counted before a parser sees it: a parser calls itself for each level.

Where that ends differs between versions of Python. The limit of the interpreter is lifted here: none may depend on it.
"""

import ast
import io
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repoagent_checksum.json_listings import parse_listing
from repoagent_decrypt.jwe.keys import _from_json as jwe_keys
from repoagent_decrypt.tink.keyset import _read_json as tink_keyset
from repoagent_fetch.archives import Unpacking
from repoagent_fetch.server_answers import document
from repoagent_license.endpoint import _grant
from repoagent_license.license_file import _json as license_json
from repoagent_llm.backend.row_parameters import _sampling_parameters
from repoagent_llm.runner.decoder_spec import parse_spec
from repoagent_llm.types.executor_errors import CheckError, DecoderError
from repoagent_llm.types.serialization import MAGIC, deserialize_result
from repoagent_scan.formats.format import MalformedError
from repoagent_scan.formats.npy import check_array
from repoagent_scan.formats.safetensors import _spans
from repoagent_server.access.access_file_reader import read_rules
from repoagent_server.codec.json_text import loads, loads_ordered
from repoagent_verify.bundle import read_signed_json as signature

from repoagent.api import WebAnswer
from repoagent.audit.lines import read_line
from repoagent.config.json_form import read_json as config
from repoagent.engines.plan_description import read_subject
from repoagent.engines.probe import Findings
from repoagent.errors import RepoAgentError
from repoagent.loader.converting.messages import parse
from repoagent.loader.policy.rules import read_policy
from repoagent.nested_text import DEEPEST, check_depth, read_json, read_toml
from repoagent.serving.backends.python.process.channel import decoded

ROOT = Path(__file__).parents[2]
LISTS = "[" * 5000 + "]" * 5000
OBJECTS = '{"a":' * 5000 + "1" + "}" * 5000
HEAD = struct.pack("<I", len(LISTS)) + LISTS.encode()

READERS: dict[str, Callable[[str], object]] = {
    "audit line": lambda text: read_line(text.encode()),
    "configuration": config,
    "relaxed configuration": lambda text: config("{a:" + text + "}"),
    "converter": lambda text: parse(text.encode()),
    "decoder": lambda text: parse_spec(text, b"", {}),
    "fetch": lambda text: document(WebAnswer(200, {}, text.encode()), "x"),
    "json of clients": lambda text: loads(b"\xef\xbb\xbf" + text.encode()),
    "json in order": lambda text: loads_ordered(text.encode()),
    "jwk": lambda text: jwe_keys(text.encode(), "x"),
    "license": lambda text: license_json(text.encode(), "x"),
    "license endpoint": lambda text: _grant(text.encode()),
    "listing": lambda text: parse_listing(text.encode(), "x"),
    "packet": decoded,
    "plan": lambda text: read_subject(text.encode(), "x"),
    "probe": Findings.from_json,
    "result": lambda text: deserialize_result(MAGIC + HEAD),
    "safetensors": lambda text: _spans(text.encode()),
    "sampling": _sampling_parameters,
    "signature": lambda text: signature(text.encode(), "x"),
    "tink": lambda text: tink_keyset(text.encode(), "x"),
    "UTF-16": lambda text: read_json(text.encode("utf-16")),
}


@pytest.fixture
def _boundless() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_boundless")
@pytest.mark.parametrize("text", [LISTS, OBJECTS, "[" * 5000], ids=["lists", "objects", "open"])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_it_with_an_error_of_its_own(name: str, text: str) -> None:
    with pytest.raises((RepoAgentError, ValueError, CheckError, DecoderError)) as refused:
        READERS[name](text)
    assert len(str(refused.value)) < 400


@pytest.mark.usefixtures("_boundless")
def test_files_of_the_operator_are_refused_too(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(f"a = {LISTS}")
    with pytest.raises(RepoAgentError, match="nested too deeply"):
        read_policy(tmp_path / "policy.toml")
    with pytest.raises(RepoAgentError, match="nested too deeply"):
        read_rules(f"a = {LISTS}".encode(), tmp_path, lambda *_: pytest.fail("no issuer"))


@pytest.mark.parametrize(
    "header",
    ["[" * 4000 + "]" * 4000, "-" * 9000 + "1", "1" + "()" * 4000, "{'descr': '<f8'}" + "[0]" * 3000, "not " * 2000],
)
@pytest.mark.usefixtures("_boundless")
def test_a_header_of_numpy_is_what_numpy_writes(header: str) -> None:
    with pytest.raises(MalformedError):
        check_array(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())


@pytest.mark.usefixtures("_boundless")
def test_headers_of_an_archive_that_announce_headers_are_counted(tmp_path: Path) -> None:
    name = tarfile.TarInfo("x")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 5
    packed = io.BytesIO((name.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0")) * 3000)
    (tmp_path / "layer").write_bytes(packed.getvalue())
    unpacking = Unpacking(tmp_path, lambda path: path, packed=0, most_files=9, check_cancelled=lambda: None)
    with pytest.raises(RepoAgentError, match="more than 16 headers of one entry"):
        unpacking.unpack(tmp_path / "layer", "none", "")


@pytest.mark.parametrize("quoted", ['"[[["', r'"\"[[["', r'"\\" "[[["', '"[[[', "[]" * 9, "]]][[" * 3, "", "[{(" * 3])
def test_only_brackets_outside_of_texts_are_counted(quoted: str) -> None:
    depth, most, inside = 0, 0, False
    steps = iter(quoted)
    for one in steps:
        if one == "\\":
            next(steps)
        elif one == '"':
            inside = not inside
        elif not inside and one in "[{(]})":
            depth += 1 if one in "[{(" else -1
            most = max(most, depth)
    check_depth(quoted, most)
    if most:
        with pytest.raises(ValueError, match=f"more than {most - 1} levels"):
            check_depth(quoted, most - 1)


def test_what_is_deep_in_a_text_or_beside_each_other_is_read() -> None:
    deep = "[" * DEEPEST + '"' + "[{" * 5000 + '"' + "]" * DEEPEST
    assert read_json(f"[{deep[1:-1]}]") is not None
    assert len(read_json("[" + ",".join(["[{}]"] * 100_000) + "]")) == 100_000
    many = "[{" * 200
    toml = f'''a = """{many}"" """\nb = "\\"{many}" # {many}\nc = '{many}'\n''' + f"d = '''{many}'' '''\n"
    assert set(read_toml(toml)) == set("abcd")


PARSERS = {"load", "loads", "literal_eval", "raw_decode", "JSONDecoder"}
ELSEWHERE = {
    "repoagent/nested_text.py": "the place itself",
    "llm/repoagent_llm/guidance/": "compilers of grammars count their own",
    "llm/repoagent_llm/backend/chat/template_child.py": "imports nothing of the project; the server counts",
    "repoagent/serving/backends/python/process/channel.py": "counts; an encoder that is led in a circle",
    "repoagent/onnx_files/opening_child.py": "imports nothing of the project; reads what the server wrote",
    "repoagent/onnx_files/graph.py": "graphs in graphs, whose depth ONNX Runtime limits",
    "repoagent/storage/paths/trees.py": "directories, not texts",
    "repoagent/testing/": "texts of its own",
    "agents/scan/repoagent_scan/formats/npy.py": "checks the form",
    "server_stub/repoagent_server/codec/json_text.py": "counts",
    "server_stub/repoagent_server/program/worker.py": "options that the keeper itself has pickled",
}


def test_nothing_else_parses_a_text_or_waits_for_the_end_of_the_stack() -> None:
    found = set()
    folders = (
        ROOT / "repoagent",
        ROOT / "llm/repoagent_llm",
        ROOT / "server_stub/repoagent_server",
        ROOT / "capi/repoagent_capi",
    )
    for path in (path for folder in (*folders, *ROOT.glob("agents/*/repoagent_*")) for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Attribute) and node.attr in PARSERS and isinstance(node.value, ast.Name)
            if (called and ast.unparse(node).split(".")[0] in ("json", "tomllib", "ast", "pickle")) or (
                isinstance(node, ast.Name) and node.id == "RecursionError"
            ):
                found.add(str(path.relative_to(ROOT)))
    assert {one for one in found if not one.startswith(tuple(ELSEWHERE))} == set()
    assert {one for one in ELSEWHERE if not any(name.startswith(one) for name in found)} == set()
