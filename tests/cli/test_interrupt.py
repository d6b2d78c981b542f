import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from repoagent.cli.interrupt import interrupt_flag

_INTERRUPTED: Final = """
import os, signal, sys
from repoagent.cli.interrupt import interrupt_flag
os.open(sys.argv[1], os.O_WRONLY)
flag = interrupt_flag()
signal.raise_signal(signal.SIGINT)
print(flag.is_set())
"""


@pytest.fixture(autouse=True)
def _handler_of_the_tests() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_counts_from_the_moment_that_the_message_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_: int, text: bytes) -> int:
        written.append(text)
        signal.raise_signal(signal.SIGINT)
        return len(text)

    monkeypatch.setattr(os, "write", write)
    flag = interrupt_flag()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert flag.is_set()
    assert len(written) == 1


def _interrupted(file: Path, stderr: int | None = None) -> str:
    shell = ("sh", "-c", 'exec "$@" 2>&-', "sh") if stderr is None else ()
    command = [*shell, sys.executable, "-c", _INTERRUPTED, str(file)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False).stdout


def test_without_a_standard_error_the_message_goes_into_no_other_file(tmp_path: Path) -> None:
    download = tmp_path / "download"
    download.write_bytes(b"")
    assert _interrupted(download) == "True\n"
    assert download.read_bytes() == b""


def test_a_standard_error_that_nobody_reads_keeps_no_load_from_its_good_end(tmp_path: Path) -> None:
    download = tmp_path / "download"
    download.write_bytes(b"")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert _interrupted(download, stderr=writer) == "True\n"
    finally:
        os.close(writer)
