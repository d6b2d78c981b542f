"""A model and a key for the tests."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "m"
    for path, content in {"config.pbtxt": b"name: 'm'", "1/model.onnx": b"weights" * 100, "1/labels.txt": b""}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


@pytest.fixture
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())
