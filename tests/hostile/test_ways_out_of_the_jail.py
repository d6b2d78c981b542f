"""Ways out of the jail that its first version had: each succeeds without the piece that denies it now."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repoagent.beneath import jail

pytestmark = pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
SCRIPT = """
import ctypes, fcntl, os, struct, sys
from pathlib import Path
from repoagent.beneath import jail
outside, libc = Path({outside!r}), ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    found = libc.syscall(*arguments)
    if found == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
version = {version} or jail.landlock_version()
jail.landlock_version = lambda: version
jail.enter_files([*map(Path, filter(None, sys.path)), outside / "read"], [outside / "work"])
jail.enter_calls(set(jail.CALLS) - {off!r})
try:
    {attempt}
except OSError as error:
    sys.exit(f"denied: {{error}}")
print("done")
"""
X86 = os.uname().machine == "x86_64"
ATTEMPTS = {
    "opens any file for ioctl": (0, "os.open(outside / 'secret', 3)"),
    "empties any file, opened for ioctl": (1, "os.open(outside / 'secret', 3 | os.O_TRUNC)"),
    "empties a file that it may read": (2, "os.open(outside / 'read', os.O_TRUNC)"),
    "has openat2 do so": (
        1, "call(437, -100, bytes(outside / 'secret'), struct.pack('QQQ', 3 | os.O_TRUNC, 0, 0), ctypes.c_size_t(24))",
    ),
    "sets flags of a file that it may read": (
        0, "fcntl.ioctl(os.open(outside / 'read', 0), 0x80086601, bytearray(8))",
    ),
    "sees names of files appear": (
        0, f"call({254 if X86 else 27}, call({294 if X86 else 26}, 0), bytes(outside), 0xFFF)",
    ),
}  # fmt: skip


def run(attempt: str, directory: Path, version: int, off: set[str]) -> "subprocess.CompletedProcess[str]":
    (directory / "work").mkdir(exist_ok=True)
    for name in ("secret", "read"):
        (directory / name).write_text(name)
    script = SCRIPT.format(outside=str(directory), version=version, off=off, attempt=attempt)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_landlock_lets_it_pass_and_the_filter_does_not(name: str, tmp_path: Path) -> None:
    version, attempt = ATTEMPTS[name]
    jailed = run(attempt, tmp_path, version, set())
    assert (jailed.returncode, jailed.stderr.partition(":")[0]) == (1, "denied"), jailed.stderr
    assert [(tmp_path / one).read_text() for one in ("secret", "read")] == ["secret", "read"]
    free = run(attempt, tmp_path, version, {"attributes"})
    if "sets flags" not in name:  # the temporary files of some systems have none
        assert free.stdout == "done\n", free.stderr


def test_files_of_its_own_are_still_made_and_emptied(tmp_path: Path) -> None:
    attempt = "(outside / 'work' / 'x').write_text('1'); (outside / 'work' / 'x').open('w+').close(); os.isatty(1)"
    assert run(attempt, tmp_path, 0, set()).stdout == "done\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has what is taken away")
def test_root_has_no_power_over_the_machine(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from repoagent.beneath import jail\n"
        "status = open('/proc/self/status')\n"
        f"jail.apply(map(Path, filter(None, sys.path)), [Path({str(tmp_path)!r})], memory_bytes=1<<32, file_bytes=1)\n"
        "print([int(one.split()[1], 16) & ~6 for one in status if one[:6] in ('CapEff', 'CapPrm', 'CapBnd')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 0, 0]\n", done.stderr
