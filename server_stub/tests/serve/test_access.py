"""``--access`` of a real server."""

import hashlib
import os
import signal
from typing import Any

from server_stub.tests.serve.test_processes import connections, processes


def _table(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[clients.{name}]\nkeys = ["sha256:{digest}"]\nmodels = ["*"]\nrights = ["infer", "manage"]\n'


def test_a_server_with_an_access_file_follows_it(world: Any) -> None:
    path = world.root / "access.toml"
    path.write_text(_table("a", "one"))
    server = world.serve(f"--access={path}", "--load-model=plain")
    assert server.http.get("/v2/health/ready").status_code == 200
    assert server.http.post("/v2/repository/models/plain/load").status_code == 401
    loaded = server.http.post("/v2/repository/models/plain/load", headers={"x-api-key": "one"})
    assert loaded.status_code == 200
    path.write_text(_table("a", "two"))
    server.until(
        lambda: server.http.post("/v2/repository/models/plain/load", headers={"x-api-key": "one"}).status_code == 401,
        "the old key is refused",
    )
    assert server.http.post("/v2/repository/models/plain/load", headers={"x-api-key": "two"}).status_code == 200
    server.until(lambda: "has been read again: 1 client" in server.log, "what it logs once the rules are in force")
    assert "two" not in server.log


def test_a_server_with_a_broken_access_file_does_not_start(world: Any) -> None:
    path = world.root / "broken.toml"
    path.write_text('[clients.a]\nkeys = ["in-clear-text"]\nmodels = ["*"]\nrights = ["infer"]\n')
    server = world.start(f"--access={path}")
    assert server.process.wait(60) == 1
    assert "is not the digest of a key" in server.log
    assert "in-clear-text" not in server.log


def test_a_worker_that_is_started_later_has_the_rules_in_force_whatever_the_file_has_become(world: Any) -> None:
    path, load = world.root / "later.toml", "/v2/repository/models/plain/load"
    path.write_text(_table("a", "one"))
    server = world.serve("--processes=2", f"--access={path}", "--load-model=plain")
    path.write_text("not an access file")
    server.until(lambda: "cannot be used" in server.log, "the new content is refused")
    for number in (1, 2):
        os.kill(processes(server)[0], signal.SIGKILL)
        server.until(lambda number=number: server.log.count("serves again") == number, "another worker")
    with connections(server) as clients:
        assert {client.post(load, headers={"x-api-key": "one"}).status_code for client in clients} == {200}
        assert {client.post(load, headers={"x-api-key": "two"}).status_code for client in clients} == {401}
        path.write_text(_table("a", "two"))
        server.until(lambda: "has been read again" in server.log, "the file is one again")
        assert {client.post(load, headers={"x-api-key": "two"}).status_code for client in clients} == {200}
    assert server.log.count("is in force") == 1
