"""Make the example's three model directories from ``model.onnx``.

The results are shipped; run it again after ``train.py``::

    python examples/digits/build.py

* ``digits``: as it is.
* ``digits_checked``: with the SHA-256 of its file.
* ``digits_secure``: encrypted to the key in ``identity.txt`` (a public one: it is an example), with the digest of what
  is sent and of what must come out, and converted on the way in.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE / "repository"
RECIPIENT = "recipient.txt"


def main() -> None:
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    plain = (HERE / "model.onnx").read_bytes()
    sealed = encrypt(plain)
    digest = hashlib.sha256(plain).hexdigest()
    write("digits", {"1/model.onnx": plain}, [])
    write("digits_checked", {"1/model.onnx": plain}, [agent("checksum", "SHA256:1/model.onnx", digest)])
    write(
        "digits_secure",
        {"1/model.onnx.age": sealed},
        [
            agent("checksum", "SHA256:1/model.onnx.age", hashlib.sha256(sealed).hexdigest()),
            agent("decrypt", "identity", "env:DIGITS_IDENTITY"),
            agent("checksum", "SHA256:1/model.onnx", digest),
            agent("convert", "level", "extended"),
        ],
    )


def encrypt(plain: bytes) -> bytes:
    """What ``repoagent encrypt`` makes of a model directory with this one file."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "model", "1")
        source.mkdir(parents=True)
        (source / "model.onnx").write_bytes(plain)
        command = [sys.executable, "-m", "repoagent", "encrypt", f"{scratch}/model", "-o", f"{scratch}/sealed"]
        subprocess.run([*command, "-r", (HERE / RECIPIENT).read_text().strip()], check=True)
        return Path(scratch, "sealed", "1", "model.onnx.age").read_bytes()


def agent(name: str, key: str, value: str) -> str:
    return f'    {{\n      name: "{name}"\n      parameters {{ key: "{key}" value: "{value}" }}\n    }}'


def write(name: str, files: dict[str, bytes], agents: list[str]) -> None:
    directory = REPOSITORY / name
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', "max_batch_size: 32"]
    if agents:
        lines += ["model_repository_agents {", "  agents [", ",\n".join(agents), "  ]", "}"]
    (directory / "config.pbtxt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
