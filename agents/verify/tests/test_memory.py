"""Memory while a model is verified does not depend on its size."""

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem

CHILD = """
import sys
from pathlib import Path
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, verify
root, signature, key = map(Path, sys.argv[1:])
verify(root, signature.read_bytes(), read_trust([("key", key.read_bytes())]), Coverage(""))
# Not ru_maxrss: a child begins with that of its parent.
print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 8 << 20], ids=["whole", "ranges"])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey, shard_size: int | None
) -> None:
    peaks = []
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    for size in (16 << 20, 512 << 20):
        root = tmp_path / str(size)
        root.mkdir()
        with (root / "weights").open("wb") as weights:
            weights.truncate(size)
        (tmp_path / "model.sig").write_bytes(sign(root, Identity(key), Serialization(shard_size=shard_size)))
        arguments = [str(root), str(tmp_path / "model.sig"), str(tmp_path / "key.pem")]
        done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) << 10)
    assert peaks[1] - peaks[0] < 16 << 20
