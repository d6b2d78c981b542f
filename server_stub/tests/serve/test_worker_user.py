"""``--worker-user``: workers of another user, real ones. A hostile model in them looks for what is not theirs."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_stub.tests.serve.conftest import World
from server_stub.tests.serve.test_certificates_handed_out import Files
from server_stub.tests.serve.test_homes import ONE
from server_stub.tests.serve.test_keys_apart import CONFIG, IN_PROCESS, THIEF, replace_workers, stolen
from server_stub.tests.serve.test_processes import SECRET, ask, connections, processes
from tests.warm import Warm

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server

USER, STRANGER = 65534, 65533
ROWS = 1 << 12
CHAIN = """model_repository_agents {{ agents [ {{ name: "agent" parameters {{ key: "copy" value: "LOAD {0}" }} }} ] }}
"""
LEAST = ["setpriv", "--bounding-set=-all,+setuid,+setgid,+kill"]
"""What the pages on deployment leave root of its capabilities."""
READER = '"own": tried(own), **{path: tried(lambda: open(path, "rb").read()) for path in PATHS},'

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the flag is for root")


def _blocked() -> Path | None:
    """The first directory above this interpreter that other users may not enter."""
    above = [*reversed(Path(sys.base_prefix).resolve().parents)]
    return next((one for one in above if not one.stat().st_mode & 1), None)


def _before(hold: Path) -> list[str]:
    """What gives the server an interpreter that its workers' user can run, in mounts of its own."""
    if (blocked := _blocked()) is None:
        return []
    hold.mkdir()
    inside = Path(sys.base_prefix).resolve().relative_to(blocked)
    script = (
        f"mount --bind {blocked} {hold} && mount -t tmpfs -o mode=755 none {blocked} && mkdir -p {blocked / inside} && "
        f'mount --bind {hold / inside} {blocked / inside} && umount {hold} && exec "$@"'
    )
    before = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("other users cannot run this interpreter, and mounts cannot be made here")
    return before


@pytest.fixture(scope="module")
def world(warm: Warm) -> Iterator[World]:
    """Below a directory that others may enter; its repository they may not."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="repoagent-test-user-")))
        root.chmod(0o711)
        made = World(root, stack, warm)
        made.shared_memory.chmod(0o711)
        made.models.chmod(0o700)
        made.agent("agent")
        made.model("plain")
        made.model("copied", [("agent", {"copy": "LOAD confidential"})])
        made.model("homed", [("agent", {"copy": "LOAD confidential"})], config=f"max_batch_size: {ROWS} {ONE}")
        yield made


def _hidden(world: World) -> dict[str, Path]:
    return {
        "key": world.root / "key",
        "audit": world.root / "audit",
        "repository": world.models / "plain" / "config.pbtxt",
        "cache": world.root / "cache" / "file",
        "workspace": world.work / "file",
    }


@pytest.fixture(scope="module")
def server(world: World) -> "Server":
    hidden = _hidden(world)
    for name, path in hidden.items():
        if name not in ("audit", "repository"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_text(SECRET)
            path.chmod(0o600)
    paths = {name: str(path) for name, path in hidden.items()}
    for name, execution, place in (("inside", IN_PROCESS, "confidential"), ("child", "", "disk")):
        (world.models / name / "1").mkdir(parents=True)
        code = THIEF.replace('"own": tried(own),', READER).replace("PATHS", repr(list(paths.values())))
        (world.models / name / "1" / "model.py").write_text(code)
        (world.models / name / "config.pbtxt").write_text(CONFIG + execution + CHAIN.format(place))
    return world.serve(
        "--processes=2",
        f"--worker-user={USER}",
        f"--request-log={world.root / 'requests'}",
        f"--audit-log={hidden['audit']}",
        *(f"--load-model={name}" for name in ("inside", "child", "copied", "homed")),
        env={"SOME_KEY": SECRET},
        before=[*_before(world.root / "hold"), *LEAST],
    )


def test_workers_are_of_that_user_without_further_groups(server: "Server") -> None:
    workers = processes(server)
    assert len(workers) == 2
    for pid in workers:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(USER)}
        assert set(status["Groups"].split()) <= {str(USER)}
        assert not any(int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"))


def test_a_hostile_model_of_that_user_reads_what_it_was_handed_over(server: "Server", world: World) -> None:
    """Nor after a reload: the new workers are handed over the same, wiped plaintext by the agents again."""
    for reload in (False, True):
        if reload:
            replace_workers(server)
            assert server.answer("copied") == [1, -2, 3, -4]
        for found in stolen(server, "inside") + stolen(server, "child"):
            assert {way for way, what in found.items() if way != "own" and not what.startswith("denied")} == set()
            assert found["own"] != "KEY"
            assert found.keys() >= {str(path) for path in _hidden(world).values()}


def test_what_is_handed_over_is_for_that_user_alone(server: "Server", world: World) -> None:
    for place in (world.memory, world.work):
        (file,) = place.glob(f"{server.process.pid}-*/**/model.py")
        for user, readable in ((USER, True), (STRANGER, False)):
            read = subprocess.run(
                ["/bin/cat", file], user=user, group=USER, extra_groups=[USER], capture_output=True, check=False
            )
            assert (read.returncode == 0) == readable, (place, read.stderr)
        write = ["/bin/sh", "-c", f"echo > {file}"]
        ran = subprocess.run(write, user=USER, group=USER, extra_groups=[USER], capture_output=True, check=False)
        assert ran.returncode


def test_all_workers_serve_what_an_agent_left_and_write_the_logs(server: "Server", world: World) -> None:
    with connections(server) as clients:
        for client in clients:
            for model, rows in (("copied", 1), ("homed", 1), ("homed", ROWS)):  # The last in shared memory.
                tensor = {"name": "X", "datatype": "FP32", "shape": [rows, 4], "data": [-1, 2, -3, 4] * rows}
                answer = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})
                assert answer.status_code == 200, answer.text
                assert answer.json()["outputs"][0]["data"] == [1, -2, 3, -4] * rows
    log = world.root / "requests"
    server.until(lambda: log.read_text().count('"copied"') >= len(clients), "the request log")
    assert log.stat().st_uid == 0
    renamed = log.rename(world.root / "renamed")
    server.process.send_signal(1)
    server.until(log.exists, "the new log")
    answer = server.ask("copied")
    server.until(lambda: '"copied"' in log.read_text() + renamed.read_text()[-200:], "a line")


def test_a_model_of_the_repository_that_the_user_may_not_read_is_refused_with_what_to_do(server: "Server") -> None:
    answer = server.load("plain")
    assert answer.status_code == 400
    assert "setfacl" in answer.text


def test_a_link_that_an_earlier_worker_left_in_the_place_of_the_log_is_not_followed(world: World) -> None:
    target, log = world.root / "target", world.root / "log-of-another"
    log.symlink_to(target)
    server = world.start("--processes=2", f"--worker-user={USER}", f"--log-file={log}")
    assert server.ended() == 1
    assert str(log) in server.log
    assert not target.exists()


def test_memory_that_is_full_fails_what_needs_it_and_nothing_else(world: World) -> None:
    """A load is refused and leaves nothing; a worker that needs wiped plaintext again gets it once there is room."""
    mounts = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=1m,mode=711 none {world.shared_memory} && exec "$@"',
    ]
    mounts = [*_before(world.root / "hold-2"), *mounts, "sh"]
    if subprocess.run([*mounts, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    world.model("large", [("agent", {"fill": "LOAD 4000000"})])
    server = world.serve("--processes=2", f"--worker-user={USER}", "--load-model=copied", before=[*mounts, *LEAST])
    memory = Path(f"/proc/{server.process.pid}/root", *world.shared_memory.parts[1:])
    refused = server.load("large")
    assert refused.status_code >= 400, refused.text
    assert not [*memory.glob("**/large")]
    assert server.answer("copied") == [1, -2, 3, -4]
    with pytest.raises(OSError, match="No space"):
        (memory / "rest").write_bytes(bytes(2 << 20))
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "model 'copied' is not served by all workers" in server.log, "the load that has no room")
    with connections(server) as clients:
        assert {server.ask("copied").status_code, *(ask(client, "copied") for client in clients)} <= {200, 503}
    (memory / "rest").unlink()
    server.until(lambda: _all_serve(server), "a load that has room")


def test_the_keys_of_tls_are_for_the_keeper_alone(world: World, tmp_path: Path) -> None:
    files = Files(tmp_path)
    first, second = files.authority.issue("first"), files.authority.issue("second")
    files.install(first)
    flags = "--processes=2", f"--worker-user={USER}", "--load-model=copied", *files.flags
    server = world.serve(*flags, before=[*_before(world.root / "hold-3"), *LEAST])
    assert files.all_names(server) == {"first"}
    files.install(second)
    server.until(lambda: files.all_names(server) == {"second"}, "the new certificate")
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "another worker")
    assert files.all_names(server) == {"second"}
    for path in files.live.iterdir():
        read = ["/bin/cat", str(path)]
        ran = subprocess.run(read, user=USER, group=USER, extra_groups=[USER], capture_output=True, check=False)
        assert ran.returncode, path


def _all_serve(server: "Server") -> bool:
    with connections(server) as clients:
        return {ask(client, "copied") for client in clients} == {200}


@pytest.mark.parametrize(("user", "why"), [("no-such-user", "has no user 'no-such-user'"), ("root", "root reads")])
def test_a_user_that_cannot_be_is_refused(user: str, why: str, world: World) -> None:
    server = world.start("--processes=2", f"--worker-user={user}")
    assert server.ended() == 1
    assert why in server.log


def test_only_root_can_give_workers_another_user(world: World) -> None:
    code = (
        "from repoagent_server.processes.user import WorkerUser\n"
        "import os; os.seteuid(65534)\n"
        "try: WorkerUser.of('nobody')\nexcept Exception as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "started as root" in ran.stdout
