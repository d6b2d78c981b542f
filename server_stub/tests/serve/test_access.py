"""``--access`` of a real server."""

import hashlib
from typing import Any


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
