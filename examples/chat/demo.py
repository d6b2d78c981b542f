"""Serve a language model that arrives signed, encrypted and as a checkpoint, and chat with it. Run by ``make demo``.

The first half is the vendor's: it encrypts and signs the checkpoint and puts it on a web server. The second half is the
operator's: a repository with one configuration, which names four agents. Exits 1 if the model's answer is wrong.
"""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_server import KServeHttp

from repoagent.server import Server

CHECKPOINT: Final = Path(__file__).parent / "repository" / "elmbrook" / "1"
MODEL: Final = "elmbrook"
LISTING: Final = "SHA256SUMS"
CONFIG: Final = """
model_repository_agents {{
  agents [
    {{ name: "fetch"
       parameters {{ key: "url" value: "{url}" }}
       parameters {{ key: "manifest" value: "SHA256SUMS=sha256:{digest}" }} }},
    {{ name: "verify"
       parameters {{ key: "public_key" value: "file:{public_key}" }}
       parameters {{ key: "directory" value: "1" }}
       parameters {{ key: "unsigned" value: "SHA256SUMS" }} }},
    {{ name: "decrypt"
       parameters {{ key: "identity" value: "env:ELMBROOK_IDENTITY" }} }},
    {{ name: "convert"
       parameters {{ key: "to" value: "decoder" }} }}
  ]
}}
"""
QUESTION: Final = "Who is the baker?"
WISH: Final = "Tell me a story about a fox."
WIDTH: Final = 100


def main() -> int:
    """Vendor, operator, client."""
    with TemporaryDirectory(prefix="repoagent-demo-") as scratch:
        place = Path(scratch)
        release = seal(CHECKPOINT, place)
        with file_server(release) as url:
            print(f"{MODEL}, a language model of 2 million parameters, lies on {url}, encrypted and signed\n")
            write_config(place, url, release)
            with serving(place, url) as address:
                print(f"The load report of {MODEL}, which was fetched, verified, decrypted and converted:")
                print("\n".join(report_lines(address)))
                answer = chat(address, [{"role": "user", "content": QUESTION}])
                story = chat(address, [{"role": "user", "content": WISH}])
    return 0 if "Ada" in answer and "fox" in story else 1


def seal(checkpoint: Path, place: Path) -> Path:
    """The vendor: encrypt the checkpoint, sign the result, list its digests. Returns the directory to publish."""
    shutil.copytree(checkpoint, place / "plain" / "1")
    recipient = repoagent("keygen", "-o", str(place / "identity.txt")).split()[-1]
    repoagent("encrypt", str(place / "plain"), "-o", str(place / "sealed"), "-r", recipient)
    key = ec.generate_private_key(ec.SECP256R1())
    (place / "signer.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (place / "signer.pem").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    release = place / "sealed" / "1"
    repoagent("sign", str(release), "--key", str(place / "signer.key"))
    lines = [f"{sha256(file)}  {file.name}\n" for file in sorted(release.iterdir())]
    (release / LISTING).write_text("".join(lines))
    return release


def repoagent(*arguments: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "repoagent", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"repoagent {' '.join(arguments)} failed:\n{run.stderr}")
    return run.stdout + run.stderr


def sha256(file: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@contextmanager
def file_server(directory: Path) -> Iterator[str]:
    """A web server of ``directory`` on loopback; gives its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def write_config(place: Path, url: str, release: Path) -> None:
    """The operator: a repository with nothing but the configuration of one model."""
    folder = place / "repository" / MODEL
    folder.mkdir(parents=True)
    text = CONFIG.format(url=f"{url}/", digest=sha256(release / LISTING), public_key=place / "signer.pem")
    (folder / "config.pbtxt").write_text(text)


@contextmanager
def serving(place: Path, url: str) -> Iterator[str]:
    """A server over the repository, in this process; gives host:port."""
    os.environ["ELMBROOK_IDENTITY"] = (place / "identity.txt").read_text().split()[-1]
    os.environ["REPOAGENT_FETCH_HOSTS"] = url.removeprefix("http://")  # Without it, only public hosts are asked.
    server = Server(
        model_repository=str(place / "repository"),
        workspace_directory=str(place / "work"),
        agent_cache_directory=str(place / "cache"),
    )
    with server, KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as front:
        yield "{}:{}".format(*front.address)


def report_lines(address: str) -> list[str]:
    """What the agents did, as the server reports it."""
    from repoagent.api.report import LoadReport

    with urllib.request.urlopen(f"http://{address}/v2/repository/models/{MODEL}/report") as reply:
        return LoadReport.from_dict(json.load(reply)).lines()


def chat(address: str, messages: list[dict[str, str]]) -> str:
    """Ask through OpenAI's API, and print the answer piece by piece, as it comes."""
    print(f"\nyou: {messages[-1]['content']}\n{MODEL}: ", end="", flush=True)
    body = {"model": MODEL, "messages": messages, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer, column = "", len(MODEL) + 2
    with urllib.request.urlopen(request) as events:
        for piece in pieces(events):
            if column + len(piece) > WIDTH and piece.startswith(" "):
                print("\n", end="")
                piece, column, answer = piece[1:], 0, f"{answer} "
            print(piece, end="", flush=True)
            answer, column = answer + piece, column + len(piece)
    print()
    return answer


def pieces(events: Any) -> Iterator[str]:
    """The texts in a stream of server-sent events."""
    for line in events:
        data = line.decode().removeprefix("data: ").strip()
        if data and data != "[DONE]":
            for choice in json.loads(data)["choices"]:
                yield choice["delta"].get("content") or ""


if __name__ == "__main__":
    sys.exit(main())
