"""The jail: what a jailed process cannot do, and that each piece of it is what denies that."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repoagent.beneath import jail
from repoagent.errors import UnsupportedError

needs_jail = pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
SCRIPT = """
import ctypes, os, resource, signal, socket, sys, threading
from pathlib import Path
from repoagent.beneath import jail
off = {off!r}
outside, work = Path({outside!r}), Path({work!r})
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == 'x86_64'
def call(*arguments):
    if libc.syscall(*arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
if "sizes" not in off:
    jail.enter_sizes(1 << 30, 1 << 20)
if "files" not in off:
    jail.enter_files([Path(one) for one in sys.path if one], [work])
jail.enter_calls(set(jail.CALLS) - off)
try:
    {attempt}
except (OSError, MemoryError, ValueError) as error:
    sys.exit(f"denied: {{error}}")
print("done")
"""
PARENT = "int(Path('/proc/self/stat').read_text().split()[3])"
ATTEMPTS = {
    "read a file": ("print((outside / 'secret').read_text())", {"files"}),
    "list a directory": ("os.listdir(outside)", {"files"}),
    "write a file": ("(outside / 'secret').write_text('changed')", {"files"}),
    "remove a file": ("(outside / 'secret').unlink()", {"files"}),
    "make a directory": ("(outside / 'new').mkdir()", {"files"}),
    "follow a link out": ("print((work / 'link').read_text())", {"files"}),
    "make a link": ("(work / 'new').symlink_to('/etc/passwd')", {"files"}),
    "make a pipe": ("os.mkfifo(work / 'new')", {"files"}),
    "take a file": ("os.rename(outside / 'secret', work / 'new')", {"files"}),
    "look into others": ("Path('/proc/1/cmdline').read_bytes()", {"files"}),
    "change rights": ("(outside / 'secret').chmod(0o777)", {"attributes"}),
    "change times": ("os.utime(outside / 'secret')", {"attributes"}),
    "cut a file off": ("call(X86 and 76 or 45, bytes(outside / 'secret'), ctypes.c_long(0))", {"attributes", "files"}),
    "open a socket": ("socket.socket()", {"network"}),
    "open a pair of sockets": ("socket.socketpair()", {"network"}),
    "start a process": ("os.fork()", {"programs"}),
    "start a program": ("os.execv('/bin/true', ['true'])", {"programs", "files"}),
    "make a file of memory": ("os.memfd_create('x')", {"programs"}),
    "leave the namespace": ("call(X86 and 272 or 97, 0)", {"programs"}),
    "send a signal": ("os.kill(os.getppid(), signal.SIGURG)", {"processes", "files"}),
    "have the kernel send a signal": ("import fcntl; fcntl.fcntl(1, 8, os.getppid())", {"processes"}),
    "raise a limit": ("resource.setrlimit(resource.RLIMIT_NOFILE, (5, 50))", {"processes"}),
    "attach to memory of others": ("call(X86 and 29 or 194, 0, ctypes.c_size_t(4096), 0o1600)", {"processes"}),
    "adjust the clock": ("call(X86 and 159 or 171, ctypes.create_string_buffer(208))", {"machine"}),
    "take much memory": ("bytearray(2 << 30)", {"sizes"}),
    "write a long file": ("signal.signal(signal.SIGXFSZ, signal.SIG_IGN); (work / 'new').write_bytes(bytes(2 << 20))",
                          {"sizes"}),
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    (outside / "secret").write_text("secret")
    (work / "link").symlink_to(outside / "secret")
    return outside, work


def run(attempt: str, places: tuple[Path, Path], off: set[str]) -> "subprocess.CompletedProcess[str]":
    script = SCRIPT.format(off=off, outside=str(places[0]), work=str(places[1]), attempt=attempt)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def state(directory: Path) -> list[tuple[str, int, float, bytes]]:
    """Everything of ``directory`` that a jailed process might have changed."""
    return [
        (path.name, path.stat().st_mode, path.stat().st_mtime, path.read_bytes())
        for path in sorted(directory.iterdir())
    ]


@needs_jail
@pytest.mark.parametrize("name", ATTEMPTS)
def test_nothing_outside_is_reached(name: str, places: tuple[Path, Path]) -> None:
    before = state(places[0])
    result = run(ATTEMPTS[name][0], places, set())
    assert result.returncode == 1
    assert "denied" in result.stderr
    assert "secret" not in result.stdout
    assert state(places[0]) == before


@needs_jail
@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name != "start a program"])
def test_without_the_piece_that_denies_it_each_attempt_succeeds(name: str, places: tuple[Path, Path]) -> None:
    attempt, pieces = ATTEMPTS[name]
    result = run(attempt, places, pieces)
    assert (result.returncode, "done" in result.stdout) == (0, True), result.stderr


@needs_jail
def test_without_both_pieces_a_program_starts(places: tuple[Path, Path]) -> None:
    result = run(ATTEMPTS["start a program"][0], places, {"programs", "files"})
    assert (result.returncode, result.stdout) == (0, "")


@needs_jail
def test_what_is_named_works_and_threads_do(places: tuple[Path, Path]) -> None:
    attempt = (
        "(work / 'new').write_text('mine'); print((work / 'new').read_text()); (work / 'new').unlink(); "
        "thread = threading.Thread(target=print, args=['thread']); thread.start(); thread.join()"
    )
    result = run(attempt, places, set())
    assert result.stdout.split() == ["mine", "thread", "done"], result.stderr


@needs_jail
def test_a_process_with_threads_is_refused(places: tuple[Path, Path]) -> None:
    attempt = (
        "threading.Thread(target=signal.pause, daemon=True).start()\n"
        "    jail.apply([], [work], memory_bytes=1 << 32, file_bytes=1)"
    )
    result = run(attempt, places, {"files", "sizes", *jail.CALLS})
    assert "a process with several threads cannot be jailed" in result.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("landlock_version", lambda: 0), "the kernel has no Landlock"),
        (("_ARCHITECTURES", {}), f"the system calls of {platform.machine()} are not known"),
    ],
)
def test_a_machine_without_it_refuses(
    change: tuple[str, object], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jail, *change)
    with pytest.raises(UnsupportedError, match=f"no jail for foreign code: {re.escape(reason)}"):
        jail.apply([], [tmp_path], memory_bytes=1, file_bytes=1)


@pytest.mark.parametrize(
    ("column", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")], ids=["x86", "arm"]
)
def test_the_numbers_of_calls_are_those_of_the_kernels_headers(column: int, header: str) -> None:
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    known = {name: numbers[column] for calls in jail.CALLS.values() for name, numbers in calls.items()}
    known |= {"clone": jail._CLONE[column], "prlimit64": jail._PRLIMIT[column], "fcntl": jail._FCNTL[column]}
    assert {name: int(found[name]) for name in known if name in found} == {
        name: number for name, number in known.items() if number is not None and name in found
    }
