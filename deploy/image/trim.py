"""Remove from an installation what no server runs: tests, headers, symbols for debuggers, other AWS services.

python3 trim.py /opt/repoagent
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

TESTS: Final = frozenset({"test", "tests"})
"""Directories of tests, below the packages named next."""
PACKAGES: Final = ("numpy", "onnx", "onnxruntime", "google")
UNUSED: Final = (
    "hf_xet",  # transfers of huggingface_hub, which only comes with tokenizers
    "onnxruntime/datasets",
    "onnxruntime/tools",
    "onnxruntime/transformers",
)
SERVICES: Final = frozenset({"kms", "s3", "signin", "sso", "sso-oidc", "sts"})
"""What agents and repositories use of AWS: buckets, keys, and credentials."""
SUFFIXES: Final = frozenset({".pyi", ".pxd", ".h", ".hpp", ".a", ".c", ".cc", ".cpp", ".pyx", ".proto"})


def trim(prefix: Path) -> None:
    (packages,) = prefix.glob("lib/python3*/site-packages")
    for name in UNUSED:
        shutil.rmtree(packages / name)
    for package in PACKAGES:
        for directory in sorted((packages / package).rglob("*")):
            if directory.name in TESTS and directory.is_dir():
                shutil.rmtree(directory)
    for service in sorted((packages / "botocore" / "data").iterdir()):
        if service.is_dir() and service.name not in SERVICES:
            shutil.rmtree(service)
    for file in sorted(packages.rglob("*")):
        if file.suffix in SUFFIXES and file.is_file():
            file.unlink()
    # Libraries in *.libs were patched when their wheels were made, and are left alone.
    symbols = [file for file in sorted(packages.rglob("*.so")) if not file.parent.name.endswith(".libs")]
    subprocess.run(["strip", "--strip-debug", *map(str, symbols)], check=True)


if __name__ == "__main__":
    trim(Path(sys.argv[1]))
