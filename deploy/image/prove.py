"""Build the image without a registry, and run it as a cluster would: read-only, as uid 1000, without a shell.

    python3 deploy/image/prove.py DIRECTORY

DIRECTORY takes some gigabytes and about ten minutes. The base image is made from Debian's packages (mmdebstrap), and
buildah carries out the Containerfile. The result serves the encrypted digits in namespaces of its own: first with
KServe's stock arguments, then as SageMaker starts it. Exit status 77: the machine lacks what that takes.
"""

import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).resolve().parents[2]
DIGITS: Final = TREE / "examples" / "digits"
PROGRAMS: Final = ("buildah", "mmdebstrap", "unshare", "setpriv", "chroot", "mount")
MOST_BYTES: Final = 400_000_000
SLIM: Final = ("doc", "info", "locale", "man")
"""What Debian's slim images leave out of /usr/share."""
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
KSERVE: Final = (
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)
PORT: Final = 8080
PATIENCE: Final = 120
LACKING: Final = 77


def main(directory: Path) -> None:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f"not proven: needs root and {', '.join(missing) or 'nothing more'}")
        sys.exit(LACKING)
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()  # buildah mounts files by absolute paths only
    buildah = Buildah(directory)
    buildah.import_base(_base(directory))
    container, root = buildah.build()
    try:
        config = json.loads(buildah.run("inspect", container))["OCIv1"]["config"]
        size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_symlink() and path.is_file())
        print(f"size: {size / 1e6:.0f} MB", flush=True)
        assert size <= MOST_BYTES, f"more than {MOST_BYTES / 1e6:.0f} MB"
        _run(root, config)
    finally:
        buildah.run("rm", container)


def _base(directory: Path) -> Path:
    """A root like that of Debian's slim image, as an archive."""
    archive = directory / "base.tar"
    if not archive.exists():
        left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in SLIM]
        merged = ["--include=usr-is-merged", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]
        _call("mmdebstrap", "--quiet", "--variant=minbase", *merged, *left_out, "bookworm", str(archive))
    return archive


class Buildah:
    """buildah, with everything that it keeps below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings = [f"--root={directory / 'storage'}", f"--runroot={directory / 'run'}", "--storage-driver=vfs"]

    def run(self, *arguments: str) -> str:
        return _call("buildah", *self._settings, *arguments).strip()

    def import_base(self, archive: Path) -> None:
        container = self.run("from", "scratch")
        self.run("add", "--quiet", container, str(archive), "/")
        self.run("commit", "--quiet", container, "localhost/base")
        self.run("rm", container)

    def build(self) -> tuple[str, Path]:
        """A container of the image, and where its files are."""
        # The machine's certificates and settings of pip hold inside, too: it may reach the index through a proxy.
        settings = self._directory / "pip.conf"
        settings.write_text("[global]\ncert = /run/certificates.crt\n")
        volumes = [f"--volume={CERTIFICATES}:/run/certificates.crt:ro", f"--volume={settings}:/etc/pip.conf:ro"]
        image = TREE / "deploy" / "image"
        self.run(
            "build",
            "--isolation=chroot",
            "--network=host",
            "--pull-never",
            "--build-arg=BASE=localhost/base",
            f"--file={image / 'Containerfile'}",
            f"--ignorefile={image / 'Containerfile.dockerignore'}",
            "--tag=localhost/repoagent",
            *volumes,
            str(TREE),
        )
        container = self.run("from", "--pull-never", "localhost/repoagent")
        return container, Path(self.run("mount", container))


def _call(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed with {done.returncode}: {' '.join(command)}")
    return done.stdout


def _run(root: Path, config: dict[str, Any]) -> None:
    """Go on in namespaces of our own, whose mounts, network and processes go with them."""
    (root / "mnt/models").mkdir(exist_ok=True)  # the places of mounts, as a container's runtime makes them
    (root / "opt/ml/model/digits").mkdir(parents=True, exist_ok=True)
    inside = [sys.executable, __file__, "--inside", str(root), json.dumps(config)]
    command = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", *inside]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"the image does not keep its promises ({done.returncode})")


def inside(root: Path, config: dict[str, Any]) -> None:
    """Mount what a cluster mounts, then start the image twice."""
    _mounts(root)
    _loopback_up()
    assert config["User"] == "1000:1000", config["User"]
    _refused(root, config)
    with Started(root, config, [*KSERVE]) as server:
        server.until_answered("/v2/health/ready")
        secure, plain = (server.ask(f"/v2/models/{name}/infer") for name in ("digits_secure", "digits"))
        assert secure["outputs"] == plain["outputs"], (secure, plain)
        assert server.uids() == {"1000"}, server.uids()
        print(f"KServe's stock arguments: digits_secure answers {secure['outputs'][0]['data']} as uid 1000", flush=True)
    with Started(root, config, ["serve"]) as server:
        server.until_answered("/ping")
        assert server.ask("/invocations")["outputs"] == plain["outputs"]
        print("serve: SageMaker's /ping and /invocations answer", flush=True)


def _mounts(root: Path) -> None:
    def mount(*arguments: str) -> None:
        _call("mount", *arguments)

    mount("--make-rprivate", "/")
    mount("--bind", str(root), str(root))
    for name, repository in (
        ("mnt/models", DIGITS / "repository"),
        ("opt/ml/model/digits", DIGITS / "repository/digits"),
    ):
        mount("--bind", str(repository), str(root / name))
        mount("-o", "remount,bind,ro", str(root / name))
    mount("-t", "proc", "proc", str(root / "proc"))
    for name in ("null", "zero", "random", "urandom"):
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    (root / "dev/shm").mkdir(exist_ok=True)
    for name in ("tmp", "dev/shm"):
        mount("-t", "tmpfs", "-o", "mode=1777,size=1g", "tmpfs", str(root / name))
    mount("-o", "remount,bind,ro", str(root))
    for shell in ("sh", "bash", "dash"):
        mount("--bind", "/dev/null", str(root / "usr/bin" / shell))


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def _command(root: Path, config: dict[str, Any], arguments: list[str]) -> list[str]:
    """What starts ``arguments`` in the image, with its user, directory and variables, and no privileges to gain."""
    environment = [*config["Env"], f"DIGITS_IDENTITY={(DIGITS / 'identity.txt').read_text().split()[-1]}"]
    return [
        *("setpriv", "--no-new-privs"),
        *("chroot", f"--userspec={config['User']}", "--groups=", str(root)),
        *("/usr/bin/env", "-i", f"--chdir={config['WorkingDir']}", *environment),
        *arguments,
    ]


def _refused(root: Path, config: dict[str, Any]) -> None:
    """The root cannot be written to, and there is no shell."""
    write = "import os; os.open('/opt/x', os.O_CREAT | os.O_WRONLY)"
    refused = subprocess.run(_command(root, config, ["python3", "-c", write]), capture_output=True, check=False)
    assert b"Read-only file system" in refused.stderr, refused.stderr
    shell = subprocess.run(_command(root, config, ["sh", "-c", "true"]), stderr=subprocess.DEVNULL, check=False)
    assert shell.returncode != 0
    print("the root is read-only, and there is no shell", flush=True)


class Started:
    """A server of the image; its end must be clean."""

    def __init__(self, root: Path, config: dict[str, Any], arguments: list[str]) -> None:
        self._root = root
        self._began = time.monotonic()
        self._process = subprocess.Popen(_command(root, config, arguments))

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(PATIENCE)
        assert status == 0, status

    def uids(self) -> set[str]:
        """Real, effective and saved user of the server, which took the place of ``chroot``."""
        text = (self._root / "proc" / str(self._process.pid) / "status").read_text()
        return set(next(line for line in text.splitlines() if line.startswith("Uid:")).split()[1:])

    def until_answered(self, path: str) -> None:
        while True:
            assert self._process.poll() is None, "the server has ended"
            assert time.monotonic() < self._began + PATIENCE, "the server does not answer"
            try:
                status, _ = self._request("GET", path)
            except OSError:
                time.sleep(0.05)
                continue
            assert status == 200, status
            print(f"ready after {time.monotonic() - self._began:.1f} s", flush=True)
            return

    def ask(self, path: str) -> dict[str, Any]:
        image = [float(number % 17) for number in range(64)]
        tensor = {"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": image}
        status, body = self._request("POST", path, json.dumps({"inputs": [tensor]}))
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(Path(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
