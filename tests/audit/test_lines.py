"""What a line holds, byte by byte; read by programs that we did not write."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from repoagent.audit.lines import BEGINNING, LONGEST_LINE, LineError, canonical, digest, make_line, plain, read_line

HOSTILE: Final = (
    "a\nb",
    '"},{"event":"load","result":"loaded"}',
    "\x00\x1b[2J\x7f\x9b",
    "\u2028\u202e\ufeff",
    "bad \udc80 name",
    "\U0001f600 \u00e9",
    "..\\/../\\u0041",
)
KEY: Final = b"0123456789abcdef"


def line_of(what: Any, key: bytes | None = None) -> bytes:
    fields = {"event": "load", "result": "loaded", "who": {"by": "client"}, "what": plain(what)}
    return make_line(fields, BEGINNING, 1_700_000_000.25, key)


def test_a_line_is_these_bytes() -> None:
    assert line_of({"model": "m"}) == (
        b'{"event":"load","prev":"' + b"0" * 64 + b'","result":"loaded","seq":1,"time":"2023-11-14T22:13:20.250000Z",'
        b'"v":1,"what":{"model":"m"},"who":{"by":"client"}}\n'
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_out_of_its_line_or_reaches_a_terminal(text: str) -> None:
    line = line_of({"model": text, text: 1, "list": [text]})
    assert line.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in line[:-1])
    fields = read_line(line[:-1])
    assert fields["event"] == "load"
    assert set(fields) == {"v", "seq", "prev", "time", "event", "result", "who", "what"}


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_writes_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(line_of({"model": text, text: 1, "b": True, "n": None}) for text in HOSTILE))
    written = subprocess.run(["jq", "-cSa", ".", str(file)], check=True, capture_output=True)
    assert written.stdout == file.read_bytes()


@pytest.mark.slow
def test_details_are_cut_to_what_a_line_may_take() -> None:
    deep: Any = "end"
    for _ in range(100):
        deep = [deep]
    line = line_of({"text": "x" * 10_000_000, "many": dict.fromkeys(map(str, range(10_000)), 1), "deep": deep})
    assert len(line) < LONGEST_LINE
    what = json.loads(line)["what"]
    assert what["text"].endswith("... (10000000 characters)")
    assert what["many"]["..."] == "9800 more"
    huge = line_of({str(n): {str(m): "x" * 2000 for m in range(200)} for n in range(200)})
    assert json.loads(huge)["what"] == {"cut": "the details are too long for one line"}


def test_numbers_that_json_cannot_hold_become_text() -> None:
    assert plain([2**53, 1.5, float("nan"), True, None, 3]) == [str(2**53), "1.5", "nan", True, None, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "canonical"),
        (b'{"v":1,"v":1}', "canonical"),
        (b'{ "v":1}', "canonical"),
        (b'{"v":NaN}', "not valid JSON"),
        (b'{"v":2}', "version"),
        (canonical({"v": 1, "seq": True, "prev": "0" * 64}), "sequence number"),
        (canonical({"v": 1, "seq": 1, "prev": "0" * 63}), "sequence number"),
        (canonical({"v": 1, "seq": 1}), "sequence number"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_what_is_not_a_line_is_recognised(line: bytes, reason: str) -> None:
    with pytest.raises(LineError, match=reason):
        read_line(line)


def test_a_key_makes_lines_that_no_one_else_can_make() -> None:
    line = line_of({"model": "m"}, KEY)[:-1]
    assert read_line(line, KEY)["what"] == {"model": "m"}
    changed = line.replace(b'"loaded"', b'"failed"')
    for wrong, key in ((changed, KEY), (line, KEY[::-1]), (line_of({"model": "m"})[:-1], KEY)):
        with pytest.raises(LineError, match="HMAC"):
            read_line(wrong, key)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_the_same_hmac() -> None:
    document = json.loads(line_of({"model": "m"}, KEY))
    mac = document.pop("mac")
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}"]
    made = subprocess.run(command, input=canonical(document), check=True, capture_output=True)
    assert made.stdout.decode().split()[-1] == mac


def test_the_hash_is_that_of_the_line_with_its_line_feed(tmp_path: Path) -> None:
    (tmp_path / "line").write_bytes(line_of({}))
    made = subprocess.run(["sha256sum", str(tmp_path / "line")], check=True, capture_output=True)
    assert made.stdout.decode().split()[0] == digest(line_of({}))
