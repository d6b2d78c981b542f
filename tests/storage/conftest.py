"""What the tests of storage share: an S3 server, a memory filesystem, and children that can be killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A fresh bucket on a real S3 server, and a filesystem of the test's own to fill it with."""

    fs: Any
    name: str
    endpoint: str

    def put(self, files: dict[str, bytes]) -> None:
        for path, content in files.items():
            self.fs.pipe_file(f"{self.name}/{path}", content)

    def url(self, path: str = "") -> str:
        """Triton's spelling."""
        return f"s3://{self.endpoint}/{self.name}/{path}"


@pytest.fixture
def s3_bucket(s3_endpoint: str, s3_credentials: None) -> S3Bucket:
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=s3_endpoint, use_listings_cache=False)
    name = f"bucket-{uuid.uuid4().hex}"
    fs.mkdir(name)
    return S3Bucket(fs, name, s3_endpoint)


@pytest.fixture
def memory_dir() -> Iterator[Path]:
    """A directory on a real memory filesystem."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if not any(line.split()[1:3] == ["/dev/shm", "tmpfs"] for line in mounts):
        pytest.skip("/dev/shm is no tmpfs here")
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="repoagent-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def tiny_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of one MiB, where the tests may mount one."""
    path = tmp_path / "tiny"
    path.mkdir()
    mount = shutil.which("mount")
    arguments = ["-t", "tmpfs", "-o", "size=1m,mode=0700", "repoagent-test", str(path)]
    if mount is None or subprocess.run([mount, *arguments], capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


class Child:
    """A Python process that reports with lines and waits for lines."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def expect(self) -> str:
        """The next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Start a child: ``child(code, *arguments)``."""
    children: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        children.append(Child(code, *(str(argument) for argument in arguments)))
        return children[-1]

    yield start
    for one in children:
        one.close()


@pytest.fixture
def write_tree() -> Callable[[Path, dict[str, bytes]], Path]:
    """Write files below a directory and return it."""

    def write(root: Path, files: dict[str, bytes]) -> Path:
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        return root

    return write


@pytest.fixture
def read_tree() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a directory, by its relative path."""

    def read(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    return read
