"""Key sets that are too large, of the wrong kind, slow, or that lead elsewhere."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from repoagent_server.access import NotAuthenticatedError
from repoagent_server.access.access_file import AccessChange, AccessFile
from repoagent_server.access.credentials import given
from repoagent_server.access.key_sources import FetchedSets, fetch
from repoagent_server.access.tokens import MOST_BYTES, read_key_set

from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from server_stub.tests.access.conftest import PATIENCE, Follow, Issuer, client, digest
from tests.file_server import FileServer, Request
from tests.waiting import until


def _set(*entries: Any) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b" " * (MOST_BYTES + 1), "more than 1048576 bytes"),
        (b"", "not valid JSON"),
        (b"<html>", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "needs 'keys'"),
        (b'{"keys":{}}', "needs 'keys'"),
        (_set(*[{}] * 257), "at most 256"),
        (_set(), "has no key for ES256"),
        (_set(1, None, [], "x"), "has no key for ES256"),
        (_set({"kty": "oct", "k": "AAAA", "alg": "HS256"}), "has no key for ES256"),
        (_set({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}), "has no key for ES256"),
        (_set({"kty": "EC", "crv": "P-256", "x": 1, "y": []}), "has no key for ES256"),
        (_set({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}), "has no key for ES256"),
    ],
    ids=range(13),
)
def test_what_is_no_key_set_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        read_key_set(data, ("ES256",))


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"alg": "ES384"}, {"alg": "none"}, {"kty": "RSA"}, {"crv": "P-384"}, {"key_ops": ["deriveKey"]}],
)
def test_a_key_for_something_else_is_left_out(issuer: Issuer, change: dict[str, Any]) -> None:
    assert len(read_key_set(_set(issuer.public()), ("ES256",)).keys) == 1
    with pytest.raises(InvalidArgumentError):
        read_key_set(_set({**issuer.public(), **change}), ("ES256",))


def test_a_short_rsa_key_is_left_out() -> None:
    def entry(bits: int) -> Any:
        return RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, bits).public_key(), as_dict=True)

    assert len(read_key_set(_set(entry(2048)), ("RS256",)).keys) == 1
    with pytest.raises(InvalidArgumentError):
        read_key_set(_set(entry(1024)), ("RS256",))


def test_only_the_public_half_of_a_key_is_kept(issuer: Issuer) -> None:
    from jwt.algorithms import ECAlgorithm

    private = {**ECAlgorithm.to_jwk(issuer.key, as_dict=True), "kid": "one"}
    kept = read_key_set(_set(private), ("ES256",)).keys[0]
    assert not hasattr(kept.key.key, "sign")


def test_several_keys_of_one_name_are_tried_a_few_times(follow: Follow, issuer: Issuer) -> None:
    others = [Issuer(issuer.folder).public() for _ in range(3)]
    issuer.publish(*others, issuer.public())
    file = follow(issuer.table(), client("people", issuer="corp"))
    assert file.access.caller(given([f"Bearer {issuer.token()}".encode()], [])).name
    others = [Issuer(issuer.folder).public() for _ in range(200)]
    assert len(read_key_set(_set(*others), ("ES256",)).fitting("one", "ES256")) == 4


# Over HTTP.


class _Web:
    """A server whose answer is one of the test's; it counts requests."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], None] = lambda handler: handler.send_error(500)
        self._server = FileServer()
        self._server.handlers.append(self._handle)
        self.url = f"{self._server.url}/keys"
        self.close = self._server.close

    def _handle(self, request: Request) -> bool:
        self.answer(request)
        request.close_connection = True  # Of some answers nothing else is the end.
        return True

    @property
    def requests(self) -> int:
        return len(self._server.requests)


def _sends(body: bytes, status: int = 200, **headers: str) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def web() -> Iterator[_Web]:
    made = _Web()
    yield made
    made.close()


@pytest.fixture
def elsewhere() -> Iterator[_Web]:
    made = _Web()
    yield made
    made.close()


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://127.0.0.1/keys", "http://169.254.169.254/latest", "gopher://x", "//127.0.0.1:1/x"],
)
def test_a_redirect_to_the_inside_is_not_followed(web: _Web, location: str) -> None:
    web.answer = _sends(b"", 302, Location=location)
    with pytest.raises(RepoAgentError):
        fetch(web.url)
    assert web.requests == 1


def test_a_redirect_to_another_port_of_this_machine_is_not_followed(web: _Web, elsewhere: _Web, issuer: Issuer) -> None:
    elsewhere.answer = _sends(_set(issuer.public()))
    web.answer = _sends(b"", 302, Location=elsewhere.url)
    with pytest.raises(RepoAgentError, match="not a public address"):
        fetch(web.url)
    assert elsewhere.requests == 0


@pytest.mark.parametrize(
    "answer",
    [
        _sends(b" " * (MOST_BYTES + 1)),
        _sends(b"x" * 100, Content_Length="50000000"),
        _sends(gzip.compress(b"x" * 1000), Content_Encoding="gzip"),
        _sends(b'{"keys":[]}'),
        _sends(b"<html>", 404),
        _sends(b"", 304),
    ],
    ids=range(6),
)
def test_an_answer_that_is_no_key_set_is_an_error(web: _Web, answer: Callable[[Any], None]) -> None:
    web.answer = answer
    with pytest.raises(RepoAgentError):
        fetch(web.url)


def _is_known(file: AccessFile, key: str) -> bool:
    try:
        return bool(file.access.caller(given([f"Bearer {key}".encode()], [])).name)
    except NotAuthenticatedError:
        return False


def test_keys_of_a_url_are_taken_and_a_new_one_is_fetched_when_a_token_names_it(
    web: _Web, follow: Follow, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.access.key_sources._RETRY_SECONDS", 0.05)
    web.answer = _sends(_set(issuer.public()))
    file = follow(issuer.table(key_set=web.url), client("people", issuer="corp"))
    assert _is_known(file, issuer.token())
    successor = Issuer(issuer.folder)
    web.answer = _sends(_set(issuer.public(), successor.public("two")))
    until(lambda: _is_known(file, successor.token(headers={"kid": "two"})))
    assert _is_known(file, issuer.token())


def test_a_key_that_a_url_has_no_more_is_refused_while_the_access_file_is_broken(
    web: _Web, follow: Follow, path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.access.key_sources._RETRY_SECONDS", 0.05)
    web.answer = _sends(_set(issuer.public()))
    file = follow(issuer.table(key_set=web.url), client("people", issuer="corp"), client("a"))
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(changes.put)
    path.write_text("[clients")
    assert changes.get(timeout=PATIENCE).error
    successor = Issuer(issuer.folder)
    web.answer = _sends(_set(successor.public("two")))
    until(lambda: _is_known(file, successor.token(headers={"kid": "two"})))
    assert not _is_known(file, issuer.token())
    assert _is_known(file, "a-key")


def test_unknown_keys_do_not_make_the_server_ask_again_and_again(
    web: _Web, follow: Follow, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.access.key_sources._RETRY_SECONDS", 3600.0)
    web.answer = _sends(_set(issuer.public()))
    file = follow(issuer.table(key_set=web.url), client("people", issuer="corp"))
    for number in range(200):
        assert not _is_known(file, issuer.token(headers={"kid": f"k{number}"}))
    assert web.requests == 1


def test_a_url_that_does_not_answer_closes_its_issuer_alone(
    web: _Web, follow: Follow, path: Any, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """And keeps no change of the file from being applied: a key that is taken away is refused all the same."""
    table = issuer.table(key_set=web.url)
    file = follow(table, client("people", issuer="corp"), client("a"))
    assert (_is_known(file, "a-key"), _is_known(file, issuer.token())) == (True, False)
    path.write_text("\n".join([table, client("people", issuer="corp"), client("b", keys=[digest("b")])]))
    until(lambda: _is_known(file, "b"))
    assert not _is_known(file, "a-key")
    assert "cannot be fetched" in caplog.text


def test_a_slow_url_holds_up_no_change_of_the_file(web: _Web, follow: Follow, path: Any, issuer: Issuer) -> None:
    gate = threading.Event()

    def slow(handler: Any) -> None:
        gate.wait(PATIENCE)
        _sends(_set(issuer.public()))(handler)

    web.answer = slow
    file = follow(client("a"))
    try:
        path.write_text("\n".join([issuer.table(key_set=web.url), client("people", issuer="corp"), client("b")]))
        until(lambda: _is_known(file, "b-key"))
        assert not _is_known(file, "a-key")
        assert not _is_known(file, issuer.token())
    finally:
        gate.set()
    until(lambda: _is_known(file, issuer.token()))


def test_a_url_that_stalls_or_breaks_its_reader_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent_server.access.key_sources._RETRY_SECONDS", 0.01)
    gate = threading.Event()
    faults = [ValueError("no library should")]

    def get(url: str) -> bytes:
        if "slow" in url:
            gate.wait(PATIENCE)
        if "odd" in url and faults:
            raise faults.pop()
        return b"keys"

    sets = FetchedSets(get)

    def is_there(url: str) -> bool:
        try:
            return sets.data(url) == b"keys"
        except NotFoundError:
            return False

    try:
        for name in ("slow", "odd", "good"):
            assert not is_there(f"https://{name}.test/keys")
        for name in ("good", "odd"):
            until(partial(is_there, f"https://{name}.test/keys"))
        assert not is_there("https://slow.test/keys")
    finally:
        gate.set()
        sets.close()


def test_keys_of_a_url_that_falls_silent_serve_for_an_hour() -> None:
    now = [1000.0]
    answers = [b"keys"]
    fetched = threading.Semaphore(0)

    def get(_: str) -> bytes:
        fetched.release()
        if not answers[0]:
            raise NotFoundError("silent")
        return answers[0]

    sets = FetchedSets(get, lambda: now[0])
    try:
        with pytest.raises(NotFoundError):
            sets.data("https://login.test/keys")
        sets.wait(PATIENCE)
        assert sets.data("https://login.test/keys") == b"keys"
        answers[0] = b""
        now[0] += 3599
        assert sets.data("https://login.test/keys") == b"keys"
        now[0] += 2
        with pytest.raises(NotFoundError, match="has not answered"):
            sets.data("https://login.test/keys")
    finally:
        sets.close()
