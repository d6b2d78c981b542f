"""Texts of strangers that an expression would read from each of its places to the end: minutes to years, in which no
other thread of the server runs. Each is taken or refused at once.
"""

import subprocess
import sys

import pytest

TEXTS = {
    "an address of a model of a hub": """
from repoagent_fetch.fetch_options import Options
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
from repoagent_fetch.fetch_options import parse_parameters
try:
    parse_parameters(Parameters([("url", "hf://a/b@" + "/" * 4_000_000)]))
except Exception as error:
    assert "more than 4096" in str(error) and len(str(error)) < 200, error
else:
    raise AssertionError
""",
    "what a registry wants to see": """
from repoagent_fetch.registry import _PART
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
from repoagent_verify.trust_roots import read_trust
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
from repoagent_llm.backend.request_limits import _REPEATED, RequestLimits
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
    "names of tensors of an adapter": """
from repoagent_llm.lora.peft import _KEY, _PLAIN
assert _KEY.fullmatch("layers.0." * 200_000) is None
found = _KEY.fullmatch("base_model.model.model.layers.12.self_attn.q_proj.lora_A.weight")
assert found.group("layer", "path", "part") == ("12", "self_attn.q_proj", "A")
for pattern in ("q_proj", "layers.1.mlp.down_proj", "^model\\\\.layers\\\\.\\\\d+\\\\.mlp", ".*q_proj|.k_proj"):
    assert _PLAIN.fullmatch(pattern), pattern
for pattern in ("(a+)+b", "(a|a)(a|a)", "\\\\d+\\\\d+", "a*a*", "a{9}", "a?a?", "(?=a)", "[z-a]"):
    assert not _PLAIN.fullmatch(pattern), pattern
""",
    "patterns of an adapter": """
import json, pathlib, tempfile
from repoagent_llm.lora.peft import _settings
with tempfile.TemporaryDirectory() as folder:
    settings = {"peft_type": "LORA", "alpha_pattern": {"(\\\\w+)+!": 1}}
    pathlib.Path(folder, "adapter_config.json").write_text(json.dumps(settings))
    try:
        _settings(pathlib.Path(folder))
    except Exception as error:
        assert "no groups or repeats" in str(error), error
    else:
        raise AssertionError
""",
    "recipients of a plugin": """
from repoagent_decrypt.age.pyrage_keys import _PLUGIN_RECIPIENT
assert _PLUGIN_RECIPIENT.fullmatch("age1" * 500_000 + "!") is None
assert _PLUGIN_RECIPIENT.fullmatch("age1yubikey1q2w3e4r5t")
""",
    "the beginnings of certificates": """
from repoagent_server.tls.certificates import _BLOCK
assert _BLOCK.findall(b"-----BEGIN CERTIFICATE-----" * 60_000) == []
good = b"-----BEGIN CERTIFICATE-----" + bytes([10]) + b"AAAA" + bytes([10]) + b"-----END CERTIFICATE-----"
assert _BLOCK.findall(good + b" " + good) == [good, good]
""",
}
"""Each program takes less than a second where all is well."""


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_taken_or_refused_at_once(text: str) -> None:
    done = subprocess.run([sys.executable, "-c", TEXTS[text]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
