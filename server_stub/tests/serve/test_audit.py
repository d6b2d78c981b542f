"""The audit log of a real server: what it holds, kills, a full disk, rotation, two servers, and who reads it."""

import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import tritonclient.grpc
from click.testing import CliRunner
from tritonclient.utils import InferenceServerException

from repoagent.audit.lines import verify
from repoagent.cli.audit import audit
from tests.extent import in_full

ROOT: Final = Path(__file__).resolve().parents[3]
NEG: Final = [1.0, -2.0, 3.0, -4.0]


@pytest.fixture
def log(world: Any, request: pytest.FixtureRequest) -> Path:
    """A log of its own for each test."""
    name = re.sub(r"\W", "_", request.node.name)
    return Path(world.root / f"{name}.audit")


@pytest.fixture
def serve(world: Any, log: Path) -> Iterator[Callable[..., Any]]:
    """Starts servers with that log, and kills what is left of them."""
    started = []

    def start(*flags: str, **more: Any) -> Any:
        server = world.serve(f"--audit-log={log}", "--allow-grpc=true", *flags, **more)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def documents(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def events(log: Path, event: str) -> list[dict[str, Any]]:
    return [one for one in documents(log) if one["event"] == event]


def results(log: Path, event: str) -> list[str]:
    return [one["result"] for one in events(log, event)]


def test_the_life_of_a_server_and_its_models_is_there(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    world.agent("keyed", KEYED)
    world.model("secret", [("keyed", {"key": "env:THE_KEY"})])
    policy = world.root / "policy.toml"
    policy.write_text('[[rule]]\nmodels = ["plain"]\nbackends = []\n')
    server = serve(f"--agent-policy={policy}", env={"THE_KEY": "the plain secret"})
    assert server.http.post("/v2/repository/models/secret/load", headers={"x-request-id": "r-1"}).status_code == 200
    assert server.load("plain").status_code == 500
    assert server.load("missing").status_code == 500
    assert server.load("secret").status_code == 200
    assert server.http.post("/v2/logging", json={"log_verbose_level": 1}).status_code == 200
    assert server.http.post("/v2/trace/setting", json={"trace_rate": "5"}).status_code == 200
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        client.unload_model("secret", headers={"x-request-id": "g-2"})
    assert server.stop() == 0

    first, *_, last = documents(log)
    assert (first["event"], first["result"], first["who"]) == ("server", "started", {"by": "operator"})
    assert first["what"]["files"]["agent_policy"] == _sha256(policy)
    assert (last["event"], last["result"]) == ("server", "stopped")
    assert results(log, "load") == ["started", "loaded", "started", "failed", "failed", "unchanged"]
    loaded, refused, missing = events(log, "load")[1], events(log, "load")[3], events(log, "load")[4]
    assert without_port(loaded["who"]) == {"by": "client", "via": "http", "request": "r-1", "address": "127.0.0.1"}
    assert loaded["what"]["config_sha256"] == _sha256(world.models / "secret" / "config.pbtxt")
    (agent,) = loaded["what"]["agents"]
    assert agent["signers"] == ["Jane"]
    assert agent["digests"] == {"model": "sha256:00"}
    assert "backend" in refused["what"]["error"]
    assert missing["what"]["model"] == "missing"
    assert results(log, "policy") == ["planned", "refused"] or "refused" in results(log, "policy")
    (key,) = events(log, "key")
    assert key["what"] == {"model": "secret", "agent": "keyed", "reference": "env:THE_KEY"}
    assert [one["what"]["setting"] for one in events(log, "settings")] == ["log", "trace"]
    who = without_port(events(log, "unload")[-1]["who"])
    assert who == {"by": "client", "via": "grpc", "request": "g-2", "address": "127.0.0.1"}
    assert "the plain secret" not in log.read_text()
    head = verify([log]).head
    assert f"ends with line {head.seq}, SHA-256 {head.hash}" in server.log


def without_port(who: dict[str, str]) -> dict[str, str]:
    host, _, port = who["address"].rpartition(":")
    assert port.isdigit()
    return {**who, "address": host}


KEYED: Final = """
from repoagent.api import Agent
class Keyed(Agent):
    api_version = 1
    def load(self, model):
        model.key(model.parameters["key"])
        model.report(digests={"model": "sha256:00"}, note="well", signer="Jane")
"""


def _sha256(path: Path) -> str:
    made = subprocess.run(["sha256sum", str(path)], check=True, capture_output=True, text=True)
    return made.stdout.split()[0]


def test_a_full_disk_stops_loads_and_changes_of_settings_and_nothing_else(
    world: Any, log: Path, serve: Callable[..., Any]
) -> None:
    for name in ("other", "third"):
        world.model(name)
    server = serve(
        "--audit-required", "--allow-metrics", "--metrics-port=0", "--load-model=plain", "--load-model=third"
    )
    filler = b"".join(log.read_bytes().splitlines(keepends=True))
    with full(server.process.pid, len(filler)):
        refused = server.load("other")
        assert refused.status_code == 503
        assert "the audit log cannot be written (File too large)" in refused.json()["error"]
        assert str(log) not in refused.text
        assert "--audit-required" in refused.text
        settings = server.http.post("/v2/logging", json={"log_verbose_level": 1})
        assert settings.status_code == 503
        assert server.http.get("/v2/logging").json()["log_verbose_level"] == 0
        assert server.http.post("/v2/trace/setting", json={"trace_rate": "7"}).status_code == 503
        assert server.http.get("/v2/trace/setting").json()["trace_rate"] == "1000"
        world.configure("plain", config="max_batch_size: 8")
        assert server.load("plain").status_code == 503
        assert server.answer("plain") == NEG
        assert server.unload("third").status_code == 200
        assert server.http.get("/v2/health/ready").status_code == 200
        assert "other" not in {name for name, one in server.index().items() if one.get("state") == "READY"}
        assert "repoagent_audit_failures_total" in server.http.get("/metrics").text
        assert log.read_bytes() == filler
    assert server.load("other").status_code == 200
    assert server.load("plain").status_code == 200
    assert documents(log)[len(filler.splitlines())]["lost"] > 3
    assert server.stop() == 0
    verify([log])


class full:
    """No file of a process can grow beyond ``size`` bytes: what it writes to a full disk."""

    def __init__(self, pid: int, size: int) -> None:
        self._pid, self._size = pid, size

    def __enter__(self) -> None:
        self._before = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, self._before)


def test_without_the_demand_a_full_disk_stops_nothing(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    server = serve()
    with full(server.process.pid, log.stat().st_size):
        # What the server logs goes into a file as well: that it cannot write either must not matter.
        assert server.load("plain").status_code == 200
        assert server.answer("plain") == NEG
    assert server.unload("plain").status_code == 200
    assert server.stop() == 0
    verify([log])


def test_a_kill_while_the_disk_is_full_does_not_take_away_the_count_of_lost_events(
    log: Path, serve: Callable[..., Any]
) -> None:
    """L25: a count that only the process has is gone with it, and the log looks complete."""
    server = serve()
    lines = len(documents(log))
    full(server.process.pid, log.stat().st_size).__enter__()
    assert server.load("plain").status_code == 200
    server.process.send_signal(signal.SIGKILL)
    server.ended()
    before = CliRunner().invoke(audit, ["verify", str(log)])
    assert before.exit_code == 0
    found = re.search(rf"{re.escape(str(log))}: (\d+) events after line {lines} could not be written", before.output)
    assert found
    assert int(found[1]) >= 2  # its start and its end
    assert serve().stop() == 0
    assert documents(log)[lines]["lost"] == int(found[1])
    after = CliRunner().invoke(audit, ["verify", str(log)])
    assert after.exit_code == 0
    assert "could not be written" not in after.output


def test_a_small_memory_disk_that_is_full_stops_loads(world: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0"; exec "$@"'
    tried = subprocess.run([*command, mount, str(disk), "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"no filesystem can be mounted here: {tried.stderr.decode().strip()}")
    server = world.start(
        "--model-control-mode=explicit",
        f"--audit-log={disk / 'audit.log'}",
        "--audit-required",
        before=[*command, mount, str(disk)],
    ).wait_ready()
    inside = Path(f"/proc/{server.process.pid}/root") / str(disk).lstrip("/")
    assert server.load("plain").status_code == 200
    with pytest.raises(OSError, match="No space left"):
        _fill(inside / "filler")
    world.configure("plain", config="max_batch_size: 16")
    for _ in range(20):  # the last page of the log may have room for some lines
        refused = server.load("plain")
        if refused.status_code != 200:
            break
        assert server.unload("plain").status_code == 200
    assert refused.status_code == 503
    assert "No space left on device" in refused.json()["error"]
    assert server.http.get("/v2/health/live").status_code == 200
    (inside / "filler").unlink()
    assert server.load("plain").status_code == 200
    verify([inside / "audit.log"])
    assert server.stop() == 0


def test_a_kill_at_any_moment_leaves_a_log_that_can_be_verified(
    world: Any, log: Path, serve: Callable[..., Any], in_background: Callable[..., Any]
) -> None:
    names = [f"k{number}" for number in range(4)]
    for name in names:
        world.model(name)
    chance = random.Random(7)
    kills = in_full(3, otherwise=1)
    for _ in range(kills):
        server = serve("--audit-sync=false")
        rounds = [in_background(partial(_busy, server, name)) for name in names]
        wanted = len(log.read_bytes()) + chance.randrange(500, 20_000)
        server.until(lambda wanted=wanted: log.stat().st_size > wanted, "lines of the log")
        server.process.send_signal(signal.SIGKILL)
        server.ended()
        for one in rounds:
            one()
        assert not verify([log]).torn  # one write per line: a kill tears it only on a full disk
    assert serve().stop() == 0
    assert results(log, "server").count("started") == kills + 1
    verify([log])


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def _busy(server: Any, name: str) -> None:
    try:
        while True:
            server.load(name)
            server.unload(name)
    except Exception:
        pass


def test_loads_and_unloads_of_many_clients_make_one_chain(
    world: Any, log: Path, serve: Callable[..., Any], in_background: Callable[..., Any]
) -> None:
    names = [f"c{number}" for number in range(8)]
    for name in names:
        world.model(name)
    server = serve("--audit-sync=false", "--model-load-thread-count=8")

    def turns(name: str) -> None:
        for _ in range(4):
            assert server.load(name).status_code == 200
            assert server.unload(name).status_code == 200

    for one in [in_background(partial(turns, name)) for name in names]:
        one()
    assert server.stop() == 0
    verify([log])
    for name in names:
        mine = [(d["event"], d["result"]) for d in documents(log) if d["what"].get("model") == name]
        once = [("load", "started"), ("load", "loaded"), ("unload", "started"), ("unload", "unloaded")]
        assert mine == once * 4


def test_a_second_server_is_refused_the_same_log(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    serve()
    second = world.start("--model-control-mode=explicit", f"--audit-log={log}")
    assert second.ended() == 1
    assert "is in use by another server" in second.log
    assert results(log, "server") == ["started"]


def test_a_hangup_after_a_rename_begins_a_new_file(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    server = serve()
    former = log.with_name(f"{log.name}.1")
    log.rename(former)
    server.process.send_signal(signal.SIGHUP)
    server.until(log.exists, "the new file")
    assert server.load("plain").status_code == 200
    assert server.stop() == 0
    assert [d["event"] for d in documents(former)] == ["server"]
    assert verify([log, former]).first == 1


def test_a_hangup_without_a_log_stops_the_server_as_sigterm_does(world: Any) -> None:
    """L24: the process died without the last calls of agents."""
    plain = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    server = world.serve(before=[sys.executable, "-c", plain])  # nohup has had it ignored
    assert server.load("plain").status_code == 200
    assert server.stop(signal.SIGHUP) == 0
    assert "successfully unloaded 'plain'" in server.log


def test_a_log_that_cannot_be_written_keeps_a_server_that_needs_it_from_starting(world: Any, log: Path) -> None:
    limited = [sys.executable, "-c", LIMIT]
    server = world.start(f"--audit-log={log}", "--audit-required", before=limited)
    assert server.ended() == 1
    assert "the audit log" in server.log  # its log is a file, too, and has room for no more
    assert not log.read_bytes()


LIMIT: Final = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def test_the_script_of_the_page_verifies_a_log_and_finds_a_change(
    world: Any, log: Path, serve: Callable[..., Any], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "reference" / "audit.md").read_text()
    match = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert match is not None
    script = tmp_path / "verify.sh"
    script.write_text(match[1])
    hostile = "\u202e\u00e9\u2028 '$(id)' \\ \" %s"
    world.model(hostile)
    server = serve()
    server.http.post(f"/v2/repository/models/{_quoted(hostile)}/load", headers={"x-request-id": "\\u0041$(id)"})
    assert server.stop() == 0
    done = subprocess.run(["sh", str(script), str(log)], check=False, capture_output=True, text=True)
    assert done.stdout.strip() == CliRunner().invoke(audit, ["verify", str(log)]).output.strip()
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0].replace(b"operator", b"somebody"), *lines[1:]]))
    done = subprocess.run(["sh", str(script), str(log)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.strip() == "line 2 is broken"


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def test_a_key_signs_the_lines(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    key = world.root / "audit.key"
    key.write_text(os.urandom(16).hex() + "\n")
    server = serve(f"--audit-key=file:{key}")
    assert server.load("plain").status_code == 200
    assert server.stop() == 0
    assert CliRunner().invoke(audit, ["verify", str(log), "--key", f"file:{key}"]).exit_code == 0
    log.write_bytes(log.read_bytes().replace(b'"stopped"', b'"started"'))
    found = CliRunner().invoke(audit, ["verify", str(log), "--key", f"file:{key}"])
    assert found.exit_code == 1
    assert "HMAC" in found.output
    assert key.read_text().strip() not in log.read_text() + server.log


def test_denied_requests_and_the_names_of_clients_are_there(world: Any, log: Path, serve: Callable[..., Any]) -> None:
    digest = hashlib.sha256(b"key-of-ann").hexdigest()
    rules = world.root / "access.toml"
    rules.write_text(f'[clients.ann]\nkeys = ["sha256:{digest}"]\nmodels = ["plain"]\nrights = ["manage"]\n')
    server = serve(f"--access={rules}")
    ann = {"x-api-key": "key-of-ann"}
    assert server.load("plain").status_code == 401
    assert server.http.post("/v2/repository/models/plain/load", headers=ann).status_code == 200
    assert server.http.post("/v2/repository/models/secret/unload", headers=ann).status_code == 403
    assert server.http.post("/v2/logging", json={"log_verbose_level": 1}, headers=ann).status_code == 403
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        client.unload_model("plain", headers=ann)
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.load_model("plain")
    assert server.stop() == 0
    verify([log])
    denied = [(one["who"].get("client"), one["who"]["via"], one["what"]["model"]) for one in events(log, "denied")]
    assert sorted(denied, key=str) == sorted(
        [(None, "http", ""), ("ann", "http", "secret"), ("ann", "http", ""), (None, "grpc", "")], key=str
    )
    assert {without_port(one["who"])["address"] for one in events(log, "denied")} == {"127.0.0.1"}
    assert {one["who"].get("client") for one in events(log, "load") + events(log, "unload")} == {"ann"}
    assert "key-of-ann" not in log.read_text()
    assert events(log, "server")[0]["what"]["files"]["access"] == _sha256(rules)


def test_requests_without_a_header_that_is_demanded_and_pages_of_other_sites_are_there(
    world: Any, log: Path, serve: Callable[..., Any]
) -> None:
    server = serve("--http-restricted-api=logging:admin=s3cret", "--grpc-restricted-protocol=logging:admin=s3cret")
    assert server.http.get("/v2/logging?admin=s3cret", headers={"admin": "guess"}).status_code == 403
    other = {"origin": "https://other.example"}
    assert server.http.post("/v2/repository/models/plain/load", headers=other).status_code == 403
    address = f"127.0.0.1:{server.port('grpc')}"
    with tritonclient.grpc.InferenceServerClient(address) as client, pytest.raises(InferenceServerException):
        client.get_log_settings()
    assert server.stop() == 0
    assert {without_port(one["who"])["address"] for one in events(log, "denied")} == {"127.0.0.1"}
    reasons = [(one["who"]["via"], one["what"]["reason"].partition(",")[0]) for one in events(log, "denied")]
    assert sorted(reasons) == [
        ("grpc", "This protocol is restricted"),
        ("http", "This API is restricted"),
        ("http", "the origin of the request"),
    ]
    assert "s3cret" not in log.read_text()
    assert "guess" not in log.read_text()
