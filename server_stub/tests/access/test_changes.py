"""Access files that change while they are followed, and while requests run."""

import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Final, Self

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from jwt import api_jwt
from repoagent_server.access import NotAuthenticatedError, access, rules
from repoagent_server.access.access_file import AccessChange, rules_of
from repoagent_server.access.credentials import given
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import (
    PATIENCE,
    Follow,
    Guarded,
    Issuer,
    client,
    digest,
    replace_file,
    tables,
    until_read,
)
from tests.waiting import until


def _knows(file: Any, key: str) -> bool:
    try:
        file.access.caller(given([f"Bearer {key}".encode()], []))
    except NotAuthenticatedError:
        return False
    return True


def test_a_changed_file_is_read_again(follow: Follow, path: Path) -> None:
    file = follow(client("a"))
    assert _knows(file, "a-key")
    path.write_text(client("b"))
    until(lambda: _knows(file, "b-key"))
    assert not _knows(file, "a-key")


def test_what_is_in_force_makes_the_same_rules_where_no_file_is(follow: Follow, issuer: Issuer) -> None:
    """In a worker process."""
    file = follow(client("a"), issuer.table(), client("people", issuer="corp"))
    made = rules_of(*file.in_force, Path("elsewhere"))
    assert made.caller(given([b"Bearer a-key"], [])).name == "a"
    assert made.caller(given([f"Bearer {issuer.token()}".encode()], [])).client.name == "people"


def test_a_file_of_the_same_size_and_time_is_read_again(follow: Follow, path: Path) -> None:
    file = follow(client("a"))
    before = path.stat()
    path.write_text(client("b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    until(lambda: _knows(file, "b-key"))


def test_a_link_that_leads_elsewhere_is_followed(tmp_path: Path) -> None:
    """As Kubernetes changes the files of a Secret."""
    from repoagent_server.access.access_file import AccessFile

    for name in ("a", "b"):
        (tmp_path / name).write_text(client(name))
    (tmp_path / "access.toml").symlink_to("a")
    with AccessFile(tmp_path / "access.toml") as file:
        (tmp_path / "new").symlink_to("b")
        (tmp_path / "new").rename(tmp_path / "access.toml")
        until(lambda: _knows(file, "b-key"))


@pytest.mark.parametrize("broken", ["[clients", client("a", rights="all"), client("a", keys=["plain"])], ids=range(3))
def test_a_broken_file_is_logged_once_and_the_old_rules_stay(
    follow: Follow, path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    file = follow(client("a"))
    path.write_text(broken)
    until(lambda: "cannot be used" in caplog.text)
    assert _knows(file, "a-key")
    path.write_text(client("b"))
    until(lambda: _knows(file, "b-key"))
    assert caplog.text.count("cannot be used") == 1
    assert "plain" not in caplog.text


def test_a_file_that_goes_leaves_the_rules_as_they_are(
    follow: Follow, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = follow(client("a"))
    path.unlink()
    until(lambda: "cannot be used" in caplog.text)
    assert _knows(file, "a-key")


def test_a_new_key_set_is_read_again(follow: Follow, issuer: Issuer) -> None:
    file = follow(issuer.table(), client("people", issuer="corp"))
    token = issuer.token()
    assert _knows(file, token)
    successor = Issuer(issuer.folder)
    successor.publish()
    until(lambda: not _knows(file, token))
    assert _knows(file, successor.token())


def test_a_broken_key_set_leaves_the_rules_as_they_are(
    follow: Follow, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    file = follow(issuer.table(), client("people", issuer="corp"))
    (issuer.folder / "keys.json").write_text("{}")
    until(lambda: "cannot be used" in caplog.text)
    assert _knows(file, issuer.token())


# While requests run.

WIDTH: Final = 4


class _Worker(threading.Thread):
    """Infers again and again with the key that is current."""

    def __init__(self, infer: Callable[[str], int], keys: list[str]) -> None:
        super().__init__()
        self._infer = infer
        self._keys = keys
        self.used = ""
        """The key of the last request that was answered."""
        self.failures: list[Any] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                key = self._keys[-1]
                status = self._infer(key)
                if status != 200:
                    self.failures.append((key, status))
                self.used = key
        except Exception as error:
            self.failures.append(error)


@contextmanager
def _over_http(guarded: Guarded) -> Iterator[Callable[[str], int]]:
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}]}
    with httpx.Client(base_url=guarded.http) as http:
        yield (
            lambda key: (
                http.post("/v2/models/shared/infer", json=body, headers={"authorization": f"Bearer {key}"}).status_code
            )
        )


@contextmanager
def _over_grpc(guarded: Guarded) -> Iterator[Callable[[str], int]]:
    tensor = grpc_client.InferInput("INPUT0", [1, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.ones((1, WIDTH), np.float32))
    with grpc_client.InferenceServerClient(guarded.grpc) as triton:

        def infer(key: str) -> int:
            triton.infer("shared", [tensor], headers={"x-api-key": key})
            return 200

        yield infer


@pytest.mark.slow
def test_keys_replaced_while_requests_run_lose_none_and_old_ones_are_refused(guarded: Guarded) -> None:
    """Each new key overlaps with the one before; clients change to it meanwhile."""

    def write(*names: str) -> None:
        guarded.write(*tables(guarded.issuer), client("turning", keys=[digest(name) for name in names]))

    keys = ["first"]
    write("first")
    with ExitStack() as stack:
        ways = [_over_http(guarded), _over_grpc(guarded)]
        workers = [_Worker(stack.enter_context(way), keys) for way in ways]
        for worker in workers:
            worker.start()
            stack.callback(worker.join)
            stack.callback(worker.stopped.set)
        for old, new in itertools.pairwise(["first", "second", "third"]):
            write(old, new)
            assert _knows(guarded.file, new)
            keys.append(new)
            until(lambda new=new: all(one.used == new or one.failures for one in workers))  # type: ignore[misc]
            write(new)
            assert not _knows(guarded.file, old)
    guarded.write(*tables(guarded.issuer))
    assert [worker.failures for worker in workers] == [[], []]
    assert [worker.used for worker in workers] == ["third"] * 2


def test_a_key_that_is_gone_is_refused_on_open_connections(guarded: Guarded) -> None:
    """Where the same bytes were let in a moment before."""
    guarded.write(*tables(guarded.issuer), client("leaving"))
    headers = {"x-api-key": "leaving-key"}
    with httpx.Client(base_url=guarded.http) as http:
        assert http.get("/v2/models/shared", headers=headers).status_code == 200
        channel = grpc.insecure_channel(guarded.grpc)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def code() -> Any:
            try:
                stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="shared"), metadata=list(headers.items()))
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        assert code() is grpc.StatusCode.OK
        guarded.write(*tables(guarded.issuer))
        assert http.get("/v2/models/shared", headers=headers).status_code == 401
        assert code() is grpc.StatusCode.UNAUTHENTICATED
        guarded.write(*tables(guarded.issuer), client("leaving"))
        assert http.get("/v2/models/shared", headers=headers).status_code == 200
        assert code() is grpc.StatusCode.OK
        channel.close()


def test_an_open_stream_follows_the_rules(guarded: Guarded) -> None:
    guarded.write(*tables(guarded.issuer), client("leaving"))
    go_on = threading.Semaphore(0)
    over = threading.Event()

    def messages() -> Any:
        while not over.is_set():
            go_on.acquire()
            message = service_pb2.ModelInferRequest(model_name="shared")
            yield message

    with grpc.insecure_channel(guarded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(messages(), metadata=[("x-api-key", "leaving-key")])
        go_on.release()
        assert "expected 1 inputs but got 0" in next(answers).error_message
        guarded.write(*tables(guarded.issuer))
        go_on.release()
        assert next(answers).error_message == "the key is not valid"
        over.set()
        go_on.release()
        answers.cancel()


def _set_clocks_forward(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Those of the library that reads tokens, and of what is kept of clients."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=seconds)

    monkeypatch.setattr(api_jwt, "datetime", Later)
    for module in (access, rules):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: time.time() + seconds))


def test_a_token_that_ends_is_refused_on_an_open_connection(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"authorization": f"Bearer {guarded.issuer.token(seconds=3600)}"}
    with httpx.Client(base_url=guarded.http) as http:
        assert http.get("/v2/models/shared", headers=headers).status_code == 200
        _set_clocks_forward(monkeypatch, 1800)
        assert http.get("/v2/models/shared", headers=headers).status_code == 200
        _set_clocks_forward(monkeypatch, 3600)
        answer = http.get("/v2/models/shared", headers=headers)
    assert answer.status_code == 401
    assert json.loads(answer.text) == {"error": "the token has expired"}
    assert answer.headers["www-authenticate"] == 'Bearer realm="repoagent", error="invalid_token"'


# Who is told.


def test_each_reading_is_reported_with_what_was_read(follow: Follow, path: Path, issuer: Issuer) -> None:
    file = follow(issuer.table(), client("people", issuer="corp"))
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(changes.put)
    keys = path.parent / "keys.json"

    def digests() -> dict[str, str]:
        return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in (path, keys)}

    replace_file(path, "\n".join([issuer.table(), client("people", issuer="corp"), client("a")]))
    assert changes.get(timeout=PATIENCE) == AccessChange(digests(), 2)
    Issuer(issuer.folder).publish()
    assert changes.get(timeout=PATIENCE) == AccessChange(digests(), 2)
    replace_file(path, "[clients")
    broken = changes.get(timeout=PATIENCE)
    assert (broken.sources, broken.clients) == (digests(), 2)
    assert "access.toml" in broken.error
    sources = broken.sources
    path.unlink()
    assert changes.get(timeout=PATIENCE).sources == {str(path): "", str(keys): sources[str(keys)]}


def test_an_observer_that_fails_stops_nothing(follow: Follow, path: Path) -> None:
    file = follow(client("a"))
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(lambda _: 1 / 0)  # type: ignore[arg-type]
    file.observe(changes.put)
    for name in ("b", "c"):
        replace_file(path, client(name))
        until_read(changes, path)
        assert _knows(file, f"{name}-key")


# Key sets while something else is broken.


def _two_issuers(folder: Path) -> tuple[Issuer, Issuer, list[str]]:
    """Two issuers with key sets of their own, and the tables of their clients."""
    issuers = []
    tables = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        made = Issuer(folder / name)
        made.publish()
        url = f"https://{name}.test/"
        issuers.append(made)
        tables += [made.table(name, issuer=url, key_set=f"{name}/keys.json"), client(f"people-{name}", issuer=name)]
    return issuers[0], issuers[1], tables


def _token(issuer: Issuer) -> str:
    return issuer.token(iss=f"https://{issuer.folder.name}.test/")


@pytest.mark.parametrize("broken", ["[clients", "[issuers.corp]", None, client("a", rights="all")], ids=range(4))
def test_key_sets_are_followed_while_the_access_file_is_broken(
    follow: Follow, path: Path, issuer: Issuer, broken: str | None
) -> None:
    file = follow(issuer.table(), client("people", issuer="corp"), client("a"))
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(changes.put)
    token = issuer.token()
    if broken is None:
        path.unlink()
    else:
        replace_file(path, broken)
    assert changes.get(timeout=PATIENCE).error
    successor = Issuer(issuer.folder)
    successor.publish()
    change = changes.get(timeout=PATIENCE)
    assert str(issuer.folder / "keys.json") in change.sources
    assert "access.toml" in change.error
    assert not _knows(file, token), "its signer has gone"
    assert _knows(file, successor.token())
    assert _knows(file, "a-key"), "the rest stays as it was"
    replace_file(path, "\n".join([issuer.table(), client("people", issuer="corp"), client("b")]))
    assert not changes.get(timeout=PATIENCE).error
    assert _knows(file, successor.token())
    assert not _knows(file, "a-key")


def test_key_sets_are_followed_while_another_one_is_broken(follow: Follow, tmp_path: Path) -> None:
    one, two, tables = _two_issuers(tmp_path)
    file = follow(*tables)
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(changes.put)
    tokens = [_token(one), _token(two)]
    assert all(_knows(file, token) for token in tokens)
    (one.folder / "keys.json").write_text("{}")
    assert changes.get(timeout=PATIENCE).error
    assert all(_knows(file, token) for token in tokens)
    successor = Issuer(two.folder)
    successor.publish()
    assert changes.get(timeout=PATIENCE).error
    assert [_knows(file, token) for token in (*tokens, _token(successor))] == [True, False, True]
    one.publish()
    assert not changes.get(timeout=PATIENCE).error
    assert [_knows(file, token) for token in (*tokens, _token(successor))] == [True, False, True]


def test_a_file_that_is_mended_to_what_it_was_is_in_force_again(follow: Follow, path: Path) -> None:
    file = follow(client("a"))
    changes: SimpleQueue[AccessChange] = SimpleQueue()
    file.observe(changes.put)
    replace_file(path, "[clients")
    assert changes.get(timeout=PATIENCE).error
    replace_file(path, client("a"))
    assert not changes.get(timeout=PATIENCE).error
    assert _knows(file, "a-key")
