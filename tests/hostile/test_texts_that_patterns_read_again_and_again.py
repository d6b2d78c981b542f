"""Texts of strangers that an expression would read from each of its places to the end: minutes to years, in which no
other thread of the server runs. Each is taken or refused at once.
"""

import subprocess
import sys

import pytest

TEXTS = {
    "an address of a model of a hub": """
from repoagent_fetch.options import Options
from repoagent_fetch.hub import _parts
try:
    _parts("hf://a/b@" + "/" * 4_000_000 + "@")
except Exception as error:
    assert "is not a model of the hub" in str(error), error
else:
    raise AssertionError
""",
    "an address that is as long as a configuration": """
from repoagent.api import Parameters
from repoagent_fetch.options import parse_parameters
try:
    parse_parameters(Parameters([("url", "hf://a/b@" + "/" * 4_000_000)]))
except Exception as error:
    assert "more than 4096" in str(error) and len(str(error)) < 200, error
else:
    raise AssertionError
""",
    "what a registry wants to see": """
from repoagent_fetch.registry_login import _PART
assert _PART.findall("a" * 2_000_000) == []
assert _PART.findall('realm="x",service="y"') == [("realm", "x"), ("service", "y")]
""",
    "the next page of a hub": """
from repoagent_fetch.hub import _NEXT
assert _NEXT.search("<" * 2_000_000) is None
assert _NEXT.search('<http://x/?a=b>; rel="next"')[1] == "http://x/?a=b"
""",
    "names of encrypted files": """
from repoagent_decrypt.patterns import Patterns
path = "/".join(["a" * 200] * 20)
for glob in ("**a" * 30 + "b", "*a" * 100 + "b", "**/" * 100 + "b", "*/**a" * 50 + "b", "[ab]*" * 100 + "c"):
    assert not Patterns.of([glob]).match(path), glob
""",
    "sets of characters that do not end": """
from repoagent_decrypt.patterns import Patterns
try:
    Patterns.of(["[" * 4_000_000])
except Exception as error:
    assert "more than 4096" in str(error), error
else:
    raise AssertionError
assert Patterns.of(["[" * 4000]).match("[" * 4000)
""",
    "the beginnings of keys": """
from repoagent_verify.trust import read_trust
for text in (b"-----BEGIN A-----" * 60_000, b"-----BEGIN " + b"A" * 1_000_000, b"-----BEGIN A-----" + b"-" * 1_000_000):
    try:
        read_trust([("f", text)])
    except Exception as error:
        assert "not a PEM file" in str(error), error
    else:
        raise AssertionError
""",
    "what looks like a token": """
from repoagent.config.redaction import is_secret
for text in ("eyJaaaaaaaa-" * 350_000, "eyJaaaaaaaa.ey-" * 250_000, "a-eyJ" * 800_000, "-----BEGIN " * 380_000):
    assert not is_secret("name", text)
for text in ("eyJhbGciOiJI.eyJzdWIiOiIx.x", "-eyJhbGciOiJI.eyJzdWIiOiIx.", "x=eyJa-eyJhbGciOiJI.eyJzdWIiOiIx.y"):
    assert is_secret("name", text), text
for text in ("eyJhbGci.eyJzdWIiOiIx.x", "xeyJhbGciOiJI.eyJzdWIiOiIx.x", "eyJhbGciOiJI.eyJzdWIiOiIx"):
    assert not is_secret("name", text), text
""",
    "repetitions in a guide": """
from repoagent.serving.backends.llm.request_limits import _REPEATED, RequestLimits
RequestLimits().check_guide("{" + " " * 65_000)
assert _REPEATED.search("{" + " " * 2_000_000) is None
assert _REPEATED.search("{" + " " * 2_000_000 + ",") is None
assert _REPEATED.search("{ 1 , 23 }").groups() == ("1", "23")
assert _REPEATED.search("{,}").groups() == ("", "")
""",
    "digits beside a number that is too large": """
from repoagent_server.codec.json_text import loads
for digits in (b"1" * 2_000_000, b"1." * 1_000_000, b"-" * 1_000_000 + b"1" * 1_000_000):
    head = b'{"a": "' + digits + b'", "b": '
    try:
        loads(head + b"-1.5e999}")
    except Exception as error:
        assert f"Number too big to be stored in double. at {len(head)}" in str(error), error
    else:
        raise AssertionError
""",
    "brackets in strings before a comma that is missing": """
from repoagent_server.codec.json_text import loads
try:
    loads(b'[{"a": "' + b'\\\\"[' * 500_000 + b'"} 1')
except Exception as error:
    assert "Missing a comma or ']'" in str(error), error
else:
    raise AssertionError
""",
}
"""Each program takes less than a second where all is well."""


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_taken_or_refused_at_once(text: str) -> None:
    done = subprocess.run([sys.executable, "-c", TEXTS[text]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
