"""Wrong names, files, keys and configurations: one clear message each, and only the model that asked is refused."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyrage
import pytest

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

Make = Callable[["World", str], None]
"""Writes the model of that name."""

OURS: Final = pyrage.x25519.Identity.generate()
THEIRS: Final = pyrage.x25519.Identity.generate()
POLL: Final = "failed to poll from model repository"


def _agents(name: str, text: str = "", **parameters: str) -> Make:
    """A model that names one agent; ``text`` is that agent."""

    def make(world: "World", model: str) -> None:
        if text:
            world.agent(name, text)
        world.model(model, [(name, parameters)])

    return make


def _checksum(key: str, value: str = "0" * 64) -> Make:
    return lambda world, model: _agents("checksum", **{key: value})(world, model)


def _config(text: str) -> Make:
    return lambda world, model: _write(world.model(model) / "config.pbtxt", text)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _encrypted(damage: Callable[[bytes], bytes] = bytes, *, to: str = str(OURS.to_public()), **parameters: str) -> Make:
    """A model whose ONNX file is an age file, ``damage``d."""

    def make(world: "World", model: str) -> None:
        plain = world.model(model, [("decrypt", parameters or {"identity": "env:TEST_IDENTITY"})]) / "1" / "model.onnx"
        cipher = pyrage.encrypt(plain.read_bytes(), [pyrage.x25519.Recipient.from_str(to)])
        plain.with_suffix(".onnx.age").write_bytes(damage(cipher))
        plain.unlink()

    return make


def _flip_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _link_out(chain: str, **parameters: str) -> Make:
    """A model with a link to a file outside of it."""

    def make(world: "World", model: str) -> None:
        directory = world.model(model, [(chain, parameters)])
        secret = world.root / "outside"
        secret.write_text("not of this model")
        os.symlink(secret, directory / "1" / "link")

    return make


_SUBCLASS: Final = "from repoagent.api import Agent\nclass A(Agent):\n    api_version = {}\n"

CASES: Final[dict[str, tuple[Make, str]]] = {
    "missing-agent": (_agents("nosuchthing"), r"agent 'nosuchthing': no such agent in .*installed agents: .*checksum"),
    "misspelt-agent": (_agents("checksun"), r"agent 'checksun': .*did you mean 'checksum'"),
    "no-import": (_agents("needs", "import module_that_is_not_there\n"), r"agent 'needs': .*module_that_is_not_there"),
    "syntax-error": (_agents("typo", "class A(:\n"), r"agent 'typo': .*invalid syntax.*line 1"),
    "no-agent-in-it": (_agents("empty", "x = 1\n"), r"agent 'empty': .*agent\.py"),
    "not-an-agent": (_agents("other", "agent = 7\n"), r"agent 'other': .*not a subclass of repoagent\.api\.Agent"),
    "api-version": (_agents("newer", _SUBCLASS.format(99)), r"agent 'newer': .*99"),
    "no-api-version": (_agents("older", "from repoagent.api import Agent\nclass A(Agent): ...\n"), r"api_version"),
    "digest": (_checksum("SHA256:1/model.onnx"), r"agent 'checksum': .*1/model\.onnx.*0{64}.*[0-9a-f]{64}"),
    "digest-of-nothing": (_checksum("MD5:1/nosuch.onnx", "0" * 32), r"agent 'checksum': .*1/nosuch\.onnx"),
    "digest-algorithm": (_checksum("CRC:1/model.onnx"), r"agent 'checksum': .*CRC"),
    "digest-outside": (_checksum("SHA256:../plain/1/model.onnx"), r"agent 'checksum': .*\.\./plain"),
    "digest-absolute": (_checksum("SHA256:/etc/hostname"), r"agent 'checksum': .*/etc/hostname"),
    "digest-of-a-link": (
        _link_out("checksum", **{"SHA256:1/link": hashlib.sha256(b"x").hexdigest()}),
        r"'1/link' is a link that leaves",
    ),
    "link-beside-encrypted": (_link_out("decrypt", identity="env:TEST_IDENTITY"), r"'1/link' is a link that leaves"),
    "wrong-key": (_encrypted(to=str(THEIRS.to_public())), r"agent 'decrypt': 1/model\.onnx\.age"),
    "no-such-key": (_encrypted(identity="env:TEST_UNSET"), r"agent 'decrypt': .*TEST_UNSET"),
    "a-key-itself": (_encrypted(identity=str(OURS)), r"agent 'decrypt': .*reference"),
    "no-key": (_encrypted(files="*.age"), r"agent 'decrypt': no key"),
    "truncated-header": (_encrypted(lambda data: data[:40]), r"agent 'decrypt': 1/model\.onnx\.age"),
    "truncated-payload": (_encrypted(lambda data: data[:-20]), r"agent 'decrypt': 1/model\.onnx\.age"),
    "one-bit": (_encrypted(_flip_last_byte), r"agent 'decrypt': 1/model\.onnx\.age"),
    "not-age": (_encrypted(lambda _: b"nothing of the sort"), r"agent 'decrypt': 1/model\.onnx\.age"),
    "broken-pbtxt": (_config('backend: "onnxruntime"\nmax_batch_size: }\n'), r"config\.pbtxt:2:17: "),
    "unknown-field": (_config('backend: "onnxruntime"\n  max_batchsize: 3\n'), r"config\.pbtxt:2:3: .*max_batch_size"),
    "wrong-type": (_config('backend: "onnxruntime"\nmax_batch_size: "many"\n'), r"config\.pbtxt:2:17: "),
    "other-name": (_config('name: "another"\nbackend: "onnxruntime"\n'), r"another"),
}


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    return world.serve("--load-model=plain", env={"TEST_IDENTITY": str(OURS)})


@pytest.mark.parametrize("model", CASES)
def test_one_message_in_the_reply_the_index_and_the_log(world: "World", server: "Server", model: str) -> None:
    make, expected = CASES[model]
    make(world, model)
    reply = server.load(model)
    error = reply.json()["error"]
    assert reply.status_code in (400, 500), error
    assert error.startswith(f"failed to load '{model}', {POLL}: "), error
    reason = error.removeprefix(f"failed to load '{model}', {POLL}: ")
    assert re.search(expected, reason, re.DOTALL), reason
    assert server.index()[model]["reason"] == reason
    line = [line for line in server.log.splitlines() if line.startswith("E")][-1]
    assert json.loads(line.partition("] ")[2]).count(reason.rstrip()) == 1
    assert str(OURS) not in error + server.log
    assert not server.http.get(f"/v2/models/{model}/ready").is_success
    assert server.answer("plain") == [1, -2, 3, -4]
    assert world.leftovers(server) == []


def test_a_backend_that_is_not_there_is_named_with_those_that_are(world: "World", server: "Server") -> None:
    _config('backend: "nosuch"')(world, "no-such-backend")
    reply = server.load("no-such-backend")
    assert reply.status_code == 400
    assert "unable to find backend 'nosuch'; available are " in reply.json()["error"]
    assert "unable to find backend 'nosuch'" in server.index()["no-such-backend"]["reason"]


@pytest.mark.parametrize("name", ["%2e%2e", "..%2fplain", "%2fetc", "plain%00", "a" * 256, "plain%2f..%2fplain"])
def test_a_name_that_leads_elsewhere_is_no_model(server: "Server", name: str) -> None:
    for action in ("load", "unload"):
        reply = server.http.post(f"/v2/repository/models/{name}/{action}")
        assert reply.status_code in ((400, 404, 500) if action == "load" else (200, 400, 404)), reply.text
    assert server.http.get(f"/v2/models/{name}/config").status_code in (400, 404)
    assert server.answer("plain") == [1, -2, 3, -4]


def test_an_age_file_with_the_right_key_is_served(world: "World", server: "Server") -> None:
    """The counterpart of all that is refused above: it was the damage that was refused."""
    _encrypted()(world, "sound")
    assert server.load("sound").status_code == 200
    assert server.answer("sound") == [1, -2, 3, -4]
    assert server.unload("sound").status_code == 200
    server.until(lambda: world.leftovers(server) == [], "the end of the model's files")


def test_at_the_start_only_the_models_that_are_bad_are_refused(world: "World") -> None:
    bad = ("misspelt-agent", "digest", "broken-pbtxt")
    for model in bad:
        CASES[model][0](world, model)
    names = [f"--load-model={name}" for name in ("plain", *bad)]
    server = world.serve(*names, "--exit-on-error=false", "--strict-readiness=false")
    index = server.index()
    assert index["plain"]["state"] == "READY"
    for model in bad:
        assert re.search(CASES[model][1], index[model]["reason"])
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.stop() == 0
    strict = world.start("--model-control-mode=explicit", *names)
    assert strict.ended() == 1
    assert "error: creating server: Internal - failed to load all models" in strict.log
    assert "'plain'" in strict.log
