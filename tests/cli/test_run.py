"""``repoagent run``: a chain in front of a server of twenty lines, and every way in which the two can end."""

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.conftest import PLAIN, agent, left_in
from tests.warm import Program, Warm

pytestmark = pytest.mark.slow

WEIGHTS = PLAIN["model.safetensors"]
SERVER = """
import http.server, mmap, os, signal, sys

with open(os.path.join(sys.argv[1], "model.safetensors"), "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = weights[:] if self.path == "/weights" else b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("deaf", flush=True))
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print("serving", os.getpid(), flush=True)
server.serve_forever()
"""
NOTES = (
    "    def model_action(self, model, action):\n"
    "        with open({!r}, 'a') as file:\n"
    "            print(action.name, file=file)\n"
)

Child = Program | subprocess.Popen[str]
Start = Callable[..., Child]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def start(flags: list[str], folder: Path, memory: Path, tmp_path: Path, warm: Warm) -> Iterator[Start]:
    """Start ``repoagent run FLAGS MODEL -- COMMAND``, over an agent that notes each action; nothing may be left.

    It is an interpreter of its own if a ``prefix`` starts it, or if it is another ``program``.
    """
    policy = tmp_path / "policy.toml"
    notes = agent(tmp_path, "note", NOTES.format(str(tmp_path / "notes")))
    policy.write_text(f'{policy.read_text()}after = ["note"]\n')
    started: list[Child] = []

    def run(
        *arguments: str | Path,
        model: Path = folder,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = (),
    ) -> Child:
        cut = arguments.index("--")
        given = [*arguments[:cut], model, *arguments[cut:]]
        words = ["run", *flags, notes, f"--confidential-directory={memory}", *map(str, given)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if prefix or program:
            command = [*prefix, sys.executable, *(program or ("-m", "repoagent")), *words]
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **pipes))
        else:
            started.append(warm.start(words, **pipes))
        return started[-1]

    yield run
    for child in started:
        child.kill()
        child.communicate()
    assert left_in(memory) == []
    assert left_in(tmp_path / "work") == []


@pytest.fixture
def run(start: Start) -> Run:
    """As ``start``, to the end."""

    def finished(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        child = start(*arguments, **options)
        output, errors = child.communicate(timeout=120)
        return subprocess.CompletedProcess(child.args, child.wait(), output, errors)

    return finished


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    return lambda: (tmp_path / "notes").read_text().split()


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, port: int) -> list[str]:
    (tmp_path / "server.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "server.py"), "{model}", str(port)]


def line(child: Child) -> str:
    """The next line of the command."""
    assert child.stdout is not None
    text = child.stdout.readline()
    assert text, child.stderr.read() if child.stderr else ""
    return text.rstrip("\n")


def wait_for_error(child: Child, text: str) -> None:
    assert child.stderr is not None
    written = ""
    for one in child.stderr:
        if text in one:
            return
        written += one
    pytest.fail(f"'{text}' was not written, but {written}")


def weights(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/weights", timeout=30) as answer:
        return bytes(answer.read())


def has_ended(process: int) -> bool:
    """Wait for the end of a process that is no child of this one."""
    with suppress(ProcessLookupError):
        held = os.pidfd_open(process)
        try:
            return bool(select.select([held], [], [], 60)[0])
        finally:
            os.close(held)
    return True


DONE = ["LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]


def test_the_command_gets_the_result_and_its_status_is_that_of_the_command(
    run: Run, notes: Callable[[], list[str]]
) -> None:
    code = (
        "import os, sys, pathlib; model = pathlib.Path(sys.argv[1]);"
        "print(model.name, sys.argv[2], os.listdir(sys.argv[3]), sorted(os.listdir(model)), "
        "os.environ['REPOAGENT_MODEL'] == sys.argv[1], (model / 'config.json').read_text(), "
        "[name for name in os.environ if name.startswith('REPO')], sys.argv[4]); sys.exit(7)"
    )
    result = run("--", sys.executable, "-c", code, "{model}", "{name}", "{repository}", "{else}")
    assert result.returncode == 7, result.stderr
    names = sorted([*PLAIN, "README.md", "model.sig"])
    assert result.stdout == (
        f"llama llama ['llama'] {names} True {PLAIN['config.json'].decode()} ['REPOAGENT_MODEL'] {{else}}\n"
    )
    assert notes() == DONE
    assert "repoagent: llama: ready" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_command_that_a_signal_ends_gives_128_and_its_number(run: Run, number: signal.Signals) -> None:
    assert run("--", "sh", "-c", f"kill -{number.value} $$").returncode == 128 + number


@pytest.mark.parametrize(
    ("program", "status"), [("/nowhere/vllm", 127), ("nosuchprogram", 127), ("/etc/passwd", 126), ("true", 126)]
)
def test_a_command_that_cannot_be_started_fails_the_load(
    run: Run, notes: Callable[[], list[str]], program: str, status: int
) -> None:
    result = run("--", program, "{model}" * 9999 if program == "true" else "{model}")
    assert result.returncode == status
    assert result.stderr.splitlines()[-1].startswith(f"repoagent: cannot run '{program}': ")
    assert notes() == ["LOAD", "LOAD_FAIL"]


def test_a_command_that_ends_before_it_is_ready_fails_the_load(
    run: Run, notes: Callable[[], list[str]], port: int
) -> None:
    result = run(f"--ready-url=http://127.0.0.1:{port}/", "--", "sh", "-c", "exit 3")
    assert result.returncode == 3
    assert "the command ended before it was ready, with status 3" in result.stderr
    assert notes() == ["LOAD", "LOAD_FAIL"]


def test_a_command_that_is_not_ready_in_time_is_stopped(run: Run, notes: Callable[[], list[str]], port: int) -> None:
    result = run(f"--ready-url=http://127.0.0.1:{port}/", "--ready-timeout=0.2", "--", "sleep", "1000")
    assert result.returncode == 1
    assert "the command was not ready after 0.2 s" in result.stderr
    assert notes() == ["LOAD", "LOAD_FAIL"]


def test_it_works_for_a_user_who_is_not_root(
    unprivileged: tuple[str, ...], flags: list[str], server: list[str], port: int, folder: Path, memory: Path
) -> None:
    words = [*unprivileged, sys.executable, "-m", "repoagent", "run", *flags, f"--confidential-directory={memory}"]
    words += [f"--ready-url=http://127.0.0.1:{port}/", str(folder), "--", *server]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        wait_for_error(child, "repoagent: llama: ready")
        assert weights(port) == WEIGHTS
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert left_in(memory) == []


def test_a_command_that_takes_the_rights_from_its_directories_leaves_nothing(
    unprivileged: tuple[str, ...], start: Start
) -> None:
    """Root can remove them anyway."""
    script = 'mkdir -p "$0/d/e" && echo x > "$0/d/e/x" && ln -s / "$0/d/link" && chmod 0 "$0/d/e" "$0/d" "$0"'
    child = start("--", "sh", "-c", script, "{model}", prefix=unprivileged)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_it_works_without_standard_streams(run: Run, tmp_path: Path, closed: str) -> None:
    result = run("--", "touch", tmp_path / "started", prefix=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert (result.returncode, (tmp_path / "started").exists()) == (0, True), result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_what_another_process_answers_is_not_the_command_being_ready(
    run: Run, notes: Callable[[], list[str]], host: str
) -> None:
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://{host}:{other.server_port}/"
        result = run(f"--ready-url={url}", "--ready-timeout=2", "--", "sleep", "1000")
        other.shutdown()
    assert result.returncode == 1
    assert f"{url} is answered by another process than the command" in result.stderr
    assert notes() == ["LOAD", "LOAD_FAIL"]


def test_the_load_is_complete_when_the_url_answers_and_sigterm_goes_to_the_command(
    start: Start, server: list[str], port: int, notes: Callable[[], list[str]]
) -> None:
    child = start(f"--ready-url=http://127.0.0.1:{port}/health", "--", *server)
    wait_for_error(child, "repoagent: llama: ready")
    assert notes() == DONE[:2]
    assert weights(port) == WEIGHTS
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert notes() == DONE


def test_the_status_is_that_of_the_command_where_the_parent_ignores_its_children(start: Start) -> None:
    """As with ``$SIG{CHLD} = "IGNORE"`` of Perl: an end was never noticed."""
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    child = start("--", "sh", "-c", "exit 7", prefix=(sys.executable, "-c", code))
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 7, errors


def test_every_signal_arrives_once(start: Start) -> None:
    code = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
        "print('go', flush=True)\n"
        "while (number := signal.sigwait(range(1, 32))) != signal.SIGTERM:\n"
        "    print(signal.Signals(number).name, flush=True)\n"
    )
    # The first signal begins the time after which the command is killed, which a busy machine exceeds.
    child = start("--stop-timeout=250", "--", sys.executable, "-c", code)
    assert line(child) == "go"
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:  # As beneath nohup: what ignores it leaves that to its children.
            child.send_signal(number)
            assert line(child) == number.name
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)
    assert (output, child.returncode) == ("", 0)


def test_a_command_that_does_not_stop_is_killed(start: Start, server: list[str]) -> None:
    child = start("--stop-timeout=0.5", "--", *server, "deaf")
    line(child)
    child.send_signal(signal.SIGTERM)
    assert line(child) == "deaf"
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGKILL


DAEMONS = """
import os, signal, sys, time

def daemon(deaf):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if deaf:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.environ.clear()
            print(os.getpid(), flush=True)
            os.close(writing)
            time.sleep(1000)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.wait()

daemon(False)
daemon(True)
sys.stdin.read() if len(sys.argv) > 1 else None
"""


def test_what_the_command_leaves_running_is_ended(start: Start) -> None:
    child = start("--", sys.executable, "-c", DAEMONS)
    daemons = [int(line(child)), int(line(child))]
    child.communicate(timeout=60)
    assert child.returncode == 0
    for process in daemons:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_kill_of_the_process_between_ends_what_the_command_left_running(start: Start) -> None:
    """Nothing may have the model once it is removed."""
    child = start("--", sys.executable, "-c", f"{DAEMONS}\nprint(os.getppid(), flush=True)\ntime.sleep(1000)")
    daemons = [int(line(child)), int(line(child))]
    os.kill(int(line(child)), signal.SIGKILL)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGKILL
    for process in daemons:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_kill_of_both_ends_the_command_and_what_it_left_running_keeps_the_files(
    start: Start, run: Run, memory: Path
) -> None:
    child = start(
        "--", sys.executable, "-c", f"{DAEMONS}\nprint(os.getppid(), os.getpid(), flush=True)\ntime.sleep(1000)"
    )
    daemons = [int(line(child)), int(line(child))]
    supervisor, command = map(int, line(child).split())
    os.kill(supervisor, signal.SIGSTOP)
    child.kill()
    os.kill(supervisor, signal.SIGKILL)
    assert has_ended(command)
    assert run("--", "true").returncode == 0
    assert any(name.endswith("llama/model.safetensors") for name in left_in(memory))
    for process in daemons:
        os.kill(process, signal.SIGKILL)
        assert has_ended(process)
    child.communicate(timeout=60)
    assert run("--", "true").returncode == 0
    assert left_in(memory) == []


def test_a_signal_during_the_load_gives_it_up(start: Start, tmp_path: Path, notes: Callable[[], list[str]]) -> None:
    policy = tmp_path / "policy.toml"
    script = tmp_path / "key.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/asked\nexec sleep 1000\n")
    script.chmod(0o700)
    policy.write_text(policy.read_text().replace(f"file:{tmp_path}/key.txt", f"exec:{script}"))
    os.mkfifo(tmp_path / "asked")
    child = start("--allow-exec-keys", "--", "true")
    program = int((tmp_path / "asked").read_text())
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert has_ended(program)


def test_an_agent_that_asks_for_the_end_ends_the_command_with_75(
    start: Start, tmp_path: Path, server: list[str]
) -> None:
    asking = "    def load_complete(self, model):\n        model.request_unload('the license has ended')\n"
    agent(tmp_path, "asking", asking)
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace('after = ["note"]', 'after = ["note", "asking"]'))
    child = start("--", *server)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 75, errors
    assert "the command is stopped: agent 'asking': the license has ended" in errors


def test_an_agent_that_asks_for_the_end_is_heard_when_no_one_reads_the_messages(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ended")
    asking = (
        "    def load_complete(self, model):\n"
        "        from threading import Thread\n"
        f"        wait = lambda: model.request_unload(Path({str(tmp_path / 'ended')!r}).read_text())\n"
        "        Thread(target=wait, daemon=True).start()\n"
    )
    agent(tmp_path, "asking", asking)
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace('after = ["note"]', 'after = ["note", "asking"]'))
    child = start("--", "sh", "-c", "echo go; exec sleep 1000")
    line(child)
    wait_for_error(child, "repoagent: llama: ready")
    assert child.stderr is not None
    child.stderr.close()
    (tmp_path / "ended").write_text("the license has ended")
    child.stderr = None
    child.communicate(timeout=60)
    assert child.returncode == 75


def test_files_that_go_when_ready_are_unlinked_and_never_truncated(
    start: Start, server: list[str], port: int, memory: Path
) -> None:
    child = start("--remove-when-ready", f"--ready-url=http://127.0.0.1:{port}/", "--", *server)
    wait_for_error(child, "repoagent: llama: ready")
    assert [name for name in left_in(memory) if "llama" in name] == []
    assert weights(port) == WEIGHTS
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM


def test_a_kill_stops_the_command_and_what_still_serves_is_not_truncated(
    start: Start, run: Run, server: list[str], port: int, memory: Path
) -> None:
    child = start("--", *server, "deaf")
    process = int(line(child).split()[1])
    child.kill()
    assert line(child) == "deaf"  # the supervisor has passed the end on
    assert run("--", "true").returncode == 0
    assert weights(port) == WEIGHTS
    assert any(name.endswith("llama/model.safetensors") for name in left_in(memory))
    os.kill(process, signal.SIGKILL)
    assert has_ended(process)
    child.communicate(timeout=60)  # the supervisor held the pipe
    assert run("--", "true").returncode == 0
    assert left_in(memory) == []


def test_the_ciphertext_goes_once_the_chain_has_moved_on(start: Start, server: list[str], tmp_path: Path) -> None:
    child = start("--", *server)
    line(child)
    assert [name for name in left_in(tmp_path / "work") if name.endswith(".age")] == []
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)


def test_a_link_leads_to_the_model_at_each_start(start: Start, run: Run, server: list[str], tmp_path: Path) -> None:
    at = tmp_path / "stable" / "llama"
    at.parent.mkdir()
    echo = ("--", "sh", "-c", 'echo $REPOAGENT_MODEL "$0" && test -f "$0/config.json"', "{model}")
    for _ in range(2):
        result = run(f"--at={at}", *echo)
        assert (result.returncode, result.stdout) == (0, f"{at} {at}\n"), result.stderr
        assert os.listdir(at.parent) == []
    child = start(f"--at={at}", "--", *server)
    process = int(line(child).split()[1])
    busy = run(f"--at={at}", *echo)
    assert busy.returncode == 1
    assert "is there already" in busy.stderr
    child.kill()
    assert has_ended(process)
    child.communicate(timeout=60)
    assert run(f"--at={at}", *echo).returncode == 0, "the link of the killed one is replaced"


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dead link"])
def test_what_someone_else_has_put_at_the_path_of_the_link_stays(run: Run, tmp_path: Path, kind: str) -> None:
    at = tmp_path / "at"
    if kind == "file":
        at.write_text("x")
    elif kind == "directory":
        at.mkdir()
    else:
        at.symlink_to(tmp_path if kind == "link" else "/nowhere")
    result = run(f"--at={at}", "--", "true")
    assert result.returncode == 1
    assert f"{at} is there already" in result.stderr
    assert os.path.lexists(at)


def test_it_works_as_the_first_process_of_a_container(start: Start) -> None:
    prefix = ("unshare", "-pf", "--mount-proc", "--kill-child")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces are not allowed here (unshare -pf)")
    child = start("--", sys.executable, "-c", DAEMONS + "time.sleep(1000)", prefix=prefix)
    line(child), line(child)
    inside = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(inside[0]), signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM


def test_on_a_terminal_a_key_arrives_once_and_the_command_reads(flags: list[str], folder: Path, memory: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "print('go', flush=True)\n"
        "print('read ' + sys.stdin.readline(), flush=True)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        words = [sys.executable, "-m", "repoagent", "run", *flags, f"--confidential-directory={memory}", str(folder)]
        os.execv(sys.executable, [*words, "--", sys.executable, "-c", code])
    with open(terminal, "r+b", buffering=0) as keys:
        written = _until(keys, b"go\r\n")
        keys.write(b"\x03")
        written += _until(keys, b"interrupted\r\n")
        keys.write(b"hello\n")
        written += _until(keys, b"read hello\r\n")
        _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), written.count(b"interrupted")) == (0, 1)


def _until(stream: IO[bytes], text: bytes) -> bytes:
    written = b""
    while not written.endswith(text) and text not in written:
        written += stream.read(1000)
    return written


def test_two_at_once_have_directories_of_their_own(start: Start, server: list[str]) -> None:
    children = [start("--", *server[:-1], "0") for _ in range(2)]
    for child in children:
        line(child)
    for child in children:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)


def test_the_audit_log_has_the_lines_of_a_server(run: Run, tmp_path: Path) -> None:
    assert run(f"--audit-log={tmp_path / 'audit'}", "--", "true").returncode == 0
    lines = [json.loads(text) for text in (tmp_path / "audit").read_text().splitlines()]
    events = [(one["event"], one["result"]) for one in lines]
    assert events == [
        ("load", "started"),
        ("policy", "planned"),
        ("key", "used"),
        ("load", "loaded"),
        ("unload", "started"),
        ("unload", "unloaded"),
    ]


def test_a_load_that_cannot_be_recorded_starts_no_command(run: Run, tmp_path: Path) -> None:
    result = run("--audit-log=/dev/full", "--audit-required", "--", "touch", tmp_path / "started")
    assert result.returncode == 1
    assert not (tmp_path / "started").exists()


def test_a_rule_names_the_commands_that_may_have_the_model(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'{policy.read_text()}backends = ["onnxruntime"]\n')
    refused = run("--", "true")
    assert refused.returncode == 1
    assert "neither judges a command" in refused.stderr
    policy.write_text(f'{policy.read_text()}commands = ["true", "{{model}}/named"]\n')
    (tmp_path / "true").write_text("#!/bin/sh\necho another\n")
    (tmp_path / "true").chmod(0o755)
    assert run("--", "true").returncode == 0
    assert run("--", shutil.which("true") or "").returncode == 0
    assert run("--", "{model}/named").returncode == 127
    for word in ("false", f"{tmp_path}/true", "{model}/true"):
        other = run("--", word)
        assert (other.returncode, "does not allow command" in other.stderr, other.stdout) == (1, True, "")


def test_a_name_is_looked_for_in_no_directory_that_may_be_anyones(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("true", "another"):
        (tmp_path / name).write_text("#!/bin/sh\necho another\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    first, second = run("--", "true"), run("--", "another")
    assert [(one.returncode, one.stdout) for one in (first, second)] == [(0, ""), (127, "")]
    assert run("--", "./another").stdout == "another\n"


def test_a_second_interrupt_while_the_command_starts_waits_for_its_end(
    run: Run, notes: Callable[[], list[str]]
) -> None:
    """It took the files from a command that had just begun."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # else ignored, if the tests run in a background
        "from repoagent.handover import command\n"
        "class Command(command.Command):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        super().__init__(*arguments, **options)\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "command.Command = Command\n"
    )
    patched = f"{code}from repoagent.cli.main import main\nmain()\n"
    result = run("--", "sleep", "1000", program=("-c", patched))
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert notes() == DONE


def test_a_key_is_no_variable_of_the_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy.toml"
    monkeypatch.setenv("MODEL_KEY", (tmp_path / "key.txt").read_text())
    policy.write_text(policy.read_text().replace(f"file:{tmp_path}/key.txt", "env:MODEL_KEY"))
    result = run("--", "env")
    assert result.returncode == 0, result.stderr
    assert "REPOAGENT_MODEL=" in result.stdout
    assert "MODEL_KEY" not in result.stdout


def test_a_model_without_versions_has_no_place_for_one(run: Run, notes: Callable[[], list[str]]) -> None:
    result = run("--", "echo", "{version}")
    assert result.returncode == 1
    assert "the command uses {version}, but the model has no version directory" in result.stderr
    assert notes() == ["LOAD", "LOAD_FAIL"]


def test_a_model_that_no_agent_looked_at_needs_a_flag(run: Run, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("")
    plain = tmp_path / "models" / "plain"
    (plain / "3").mkdir(parents=True)
    (plain.parent / "other").mkdir()
    result = run("--", "true", model=plain)
    assert (result.returncode, "no agent looked at model 'plain'" in result.stderr) == (1, True)
    words = ("--", "sh", "-c", "echo {version} && ls {repository}")
    allowed = run("--allow-unchecked", *words, model=plain)
    version, repository = allowed.stdout.split()
    assert (Path(version).name, repository) == ("3", "plain")


@pytest.mark.parametrize(
    "wrong",
    [
        *(["--ready-url=http://[", "--", "true"], ["--"], ["--nosuch", "--", "true"]),
        *([f"--stop-timeout={seconds}", "--", "true"] for seconds in ("nan", "inf", "-1", "1e999", "x")),
        *([f"--ready-timeout={seconds}", "--", "true"] for seconds in ("nan", "inf", "0")),
    ],
)
def test_a_wrong_command_line_is_status_2(run: Run, wrong: list[str]) -> None:
    assert run(*wrong).returncode == 2
