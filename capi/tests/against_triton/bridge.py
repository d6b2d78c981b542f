"""Our agents in a stock Triton, over the bridge: what docs/capi.md claims of it.

    python capi/tests/against_triton/bridge.py --triton .venvs/triton

Exits with 1 at the first claim that is not so. `make bridge-peers` installs that Triton first. Development only.
"""

import argparse
import hashlib
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pyrage
from stock import MODEL, Failed, Stock, Triton, expect, running, write_model

GENERIC: Final = "failed to poll from model repository"


class Bench:
    """A repository, agents that were laid out, and a Triton over them."""

    def __init__(self, stock: Stock, directory: Path) -> None:
        self._stock = stock
        self._directory = directory
        self.workspace = directory / "workspace"
        self.marker = f"marker-{uuid.uuid4().hex}"
        self._backends = stock.backends(directory / "backends")
        install = [str(Path(sys.executable).with_name("repoagent")), "bridge", "install"]
        subprocess.run([*install, str(directory / "agents"), "checksum", "decrypt"], check=True, capture_output=True)
        self._write_models(directory / "repository")

    def _write_models(self, repository: Path) -> None:
        plain = f"{MODEL}# {self.marker}\n".encode()
        identity, other = pyrage.x25519.Identity.generate(), pyrage.x25519.Identity.generate()
        sealed = pyrage.encrypt(plain, [identity.to_public()])
        for name, key in (("right", identity), ("wrong", other)):
            (self._directory / f"{name}.key").write_text(str(key))
        right, wrong = ({"identity": f"file:{self._directory}/{name}.key"} for name in ("right", "wrong"))
        digest, sealed_digest = md5(plain), md5(sealed)
        write_model(repository / "guarded", {"checksum": {"MD5:1/model.py": digest}}, {"model.py": plain})
        write_model(repository / "changed", {"checksum": {"MD5:1/model.py": "0" * 32}}, {"model.py": plain})
        check = {"MD5:1/model.py.age": sealed_digest}
        write_model(repository / "sealed", {"checksum": check, "decrypt": right}, {"model.py.age": sealed})
        write_model(repository / "locked", {"checksum": check, "decrypt": wrong}, {"model.py.age": sealed})

    def triton(self) -> AbstractContextManager[Triton]:
        """A server that loads on demand."""
        home, directory = self._stock.home, self._directory
        command = [str(home / "bin" / "tritonserver"), "--model-repository", str(directory / "repository")]
        command += ["--backend-directory", str(self._backends), "--repoagent-directory", str(directory / "agents")]
        command += ["--model-control-mode", "explicit", "--allow-gpu-metrics", "false"]
        settings = {"REPOAGENT_WORKSPACE": str(self.workspace), "REPOAGENT_ALLOW_SWAP": "1"}
        return running(command, directory / "log", self._stock.variables(**settings))

    def plaintext(self) -> list[Path]:
        """Copies of the model outside of its repository, in files or in memory."""
        found = []
        for root in (self.workspace, Path("/dev/shm")):
            for path in root.rglob("*.py"):
                try:
                    content = path.read_bytes()
                except OSError:
                    continue  # It went meanwhile; others use /dev/shm, too.
                if self.marker.encode() in content:
                    found.append(path)
        return found


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def first_server(bench: Bench) -> None:
    with bench.triton() as triton:
        found = re.search(r"server_version\s*\|\s*([\d.]+)", triton.log)
        print(f"Triton {found[1] if found else 'of unknown version'}")
        expect("`checksum`, right digest: the model is loaded", triton.load("guarded")[0] == 200, triton.log)
        expect("it serves", triton.infers("guarded"), triton.log)
        private = [path for path in bench.plaintext() if path.is_relative_to(bench.workspace)]
        expect("it was loaded from a private copy", len(private) == 1, private)
        expect("`checksum`, then `decrypt`: the model is loaded", triton.load("sealed")[0] == 200, triton.log)
        expect("it serves", triton.infers("sealed"), triton.log)
        hidden = [path for path in bench.plaintext() if path not in private]
        expect("its plaintext lies in memory only", [path.parts[1:3] for path in hidden] == [("dev", "shm")], hidden)
        status, text = triton.load("changed")
        expect("wrong digest: refused, with Triton's text for clients", status == 500 and GENERIC in text, text)
        expect("the log has the reason", "Mismatched MD5 hash for file 1/model.py, expect: 000000" in triton.log)
        status, text = triton.load("locked")
        expect("wrong key: refused, with Triton's text for clients", status == 500 and GENERIC in text, text)
        expect("the log has the reason", "no identity fits" in triton.log, triton.log)
        expect("a refused model leaves nothing", sorted(bench.plaintext()) == sorted(private + hidden))
        expect("the server stops on SIGTERM", triton.end(signal.SIGTERM) == 0, triton.log)
    expect("nothing is left after it stopped", bench.plaintext() == [], bench.plaintext())


def killed_server(bench: Bench) -> None:
    with bench.triton() as triton:
        loaded = triton.load("guarded")[0], triton.load("sealed")[0]
        expect("a second server loads both models", loaded == (200, 200), triton.log)
        triton.end(signal.SIGKILL)
    left = bench.plaintext()
    expect("a server that is killed leaves its copies", len(left) == 2, left)
    with bench.triton() as triton:
        expect("the next server loads a model", triton.load("guarded")[0] == 200 and triton.infers("guarded"))
        still = [path for path in left if path.exists()]
        expect("what the killed one left is gone", still == [], still)
        expect("the server stops on SIGTERM", triton.end(signal.SIGTERM) == 0, triton.log)
    expect("nothing is left at all", bench.plaintext() == [], bench.plaintext())


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--triton", type=Path, required=True, help="the virtual environment with nvidia-pytriton")
    stock = Stock(parser.parse_args().triton.resolve())
    print(f"nvidia-pytriton {stock.version}")
    with tempfile.TemporaryDirectory() as made:
        try:
            bench = Bench(stock, Path(made))
            first_server(bench)
            killed_server(bench)
        except Failed as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
