"""Files that one program writes are read by the other, both ways: ours and sha256sum, b3sum, age and pyrage.

    python benchmarks/interop.py        # after `make bench-peers`

Prints one line per peer. A peer that is not installed prints MISSING; that, and any disagreement, is exit status 1.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FILES = {"config.pbtxt": b'name: "m"\n', "1/model.onnx": os.urandom(3 * 65536 + 17), "1/empty.bin": b""}


def main() -> int:
    results = [
        report(
            "sha256sum", shutil.which("sha256sum") is not None, lambda: digests("sha256sum", "sha256", "SHA256SUMS")
        ),
        report("b3sum", shutil.which("b3sum") is not None, lambda: digests("b3sum", "blake3", "B3SUMS")),
        report("age", shutil.which("age") is not None, lambda: encrypted(age_encrypt, age_decrypt)),
        report(
            "pyrage", importlib.util.find_spec("pyrage") is not None, lambda: encrypted(pyrage_encrypt, pyrage_decrypt)
        ),
    ]
    return 0 if all(results) else 1


def report(peer: str, installed: bool, check: Callable[[], None]) -> bool:
    if not installed:
        print(f"{peer:10} MISSING: make bench-peers")
        return False
    try:
        check()
    except (AssertionError, subprocess.CalledProcessError) as error:
        print(f"{peer:10} DISAGREES: {error}")
        return False
    print(f"{peer:10} ok, both ways")
    return True


def repoagent(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "repoagent", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def model(directory: Path) -> Path:
    for name, content in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def digests(program: str, algorithm: str, manifest: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = model(Path(scratch, "ours")), model(Path(scratch, "theirs"))
        repoagent("checksum", "write", str(ours), f"--algorithm={algorithm}")
        subprocess.run([program, "--check", manifest], cwd=ours, check=True, stdout=subprocess.DEVNULL)
        with (theirs / manifest).open("wb") as out:
            subprocess.run([program, *sorted(FILES)], cwd=theirs, check=True, stdout=out)
        repoagent("checksum", "verify", str(theirs), f"--algorithm={algorithm}")


def encrypted(encrypt: Callable[[str, Path, Path], None], decrypt: Callable[[Path, Path, Path], None]) -> None:
    """``encrypt(recipient, source, target)`` and ``decrypt(identity_file, source, target)`` are the peer's."""
    with tempfile.TemporaryDirectory() as scratch:
        source, identity = model(Path(scratch, "source")), Path(scratch, "identity")
        repoagent("keygen", "-o", str(identity))
        recipient = next(line.split()[-1] for line in identity.read_text().splitlines() if "public key" in line)
        repoagent("encrypt", str(source), "-o", f"{scratch}/sealed", "-r", recipient)
        decrypt(identity, Path(scratch, "sealed/1/model.onnx.age"), Path(scratch, "opened"))
        assert Path(scratch, "opened").read_bytes() == FILES["1/model.onnx"], "the peer read something else"
        foreign = Path(scratch, "foreign/1")
        foreign.mkdir(parents=True)
        encrypt(recipient, source / "1/model.onnx", foreign / "model.onnx.age")
        repoagent("decrypt", f"{scratch}/foreign", "-o", f"{scratch}/out", "-i", str(identity))
        assert Path(scratch, "out/1/model.onnx").read_bytes() == FILES["1/model.onnx"], "we read something else"


def age_encrypt(recipient: str, source: Path, target: Path) -> None:
    subprocess.run(["age", "-r", recipient, "-o", str(target), str(source)], check=True)


def age_decrypt(identity: Path, source: Path, target: Path) -> None:
    subprocess.run(["age", "-d", "-i", str(identity), "-o", str(target), str(source)], check=True)


def pyrage_encrypt(recipient: str, source: Path, target: Path) -> None:
    import pyrage

    target.write_bytes(pyrage.encrypt(source.read_bytes(), [pyrage.x25519.Recipient.from_str(recipient)]))


def pyrage_decrypt(identity: Path, source: Path, target: Path) -> None:
    import pyrage

    key = pyrage.x25519.Identity.from_str(identity.read_text().split()[-1])
    target.write_bytes(pyrage.decrypt(source.read_bytes(), [key]))


if __name__ == "__main__":
    sys.exit(main())
