"""Memory of fetch, verify and decrypt for files of several sizes: what a file of gigabytes adds to a process.

    python benchmarks/flat_memory.py                  # 256 MiB, 1 GiB and 4 GiB; needs 9 GiB of /dev/shm
    python benchmarks/flat_memory.py --sizes 64M,256M

Each runs in a process of its own, through the code that a load runs. The figure is how far its peak (``VmHWM``) lies
above that before the work began; ``ru_maxrss`` would begin with that of the parent. JWE is refused above 2 GiB. The
exit status is 1 if a size adds 32 MiB to what the smallest takes.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fetch_speed import OURS, serve
from measures import fill, options_of, run, size_of, table
from repoagent_decrypt.age.files import encrypt_file as encrypt_age
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.tink.files import encrypt_file as encrypt_tink
from repoagent_decrypt.tink.keyset import parse_keyset
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem

PIECE = 3 << 20
LARGEST_JWE = 2 << 30
ALLOWED = 32 << 20
MEASURE = """
import sys
from pathlib import Path
{imports}
def peak():
    return int(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))

def work():
    {work}
before = peak()
work()
print((peak() - before) << 10)
"""
VERIFY = (
    """
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, verify
""",
    """
    root, signature, key = map(Path, sys.argv[1:])
    verify(root, signature.read_bytes(), read_trust([("key", key.read_bytes())]), Coverage(""))
""",
)
DECRYPT = (
    """
from repoagent_decrypt.formats import KEY_PARAMETERS, decrypt_file
from repoagent_decrypt.files.positional import Workers
""",
    """
    source, target, kind, key = sys.argv[1:]
    keys = KEY_PARAMETERS[kind](Path(key).read_bytes(), "key")
    with Workers() as workers:
        decrypt_file(Path(source), Path(target), keys, workers=workers, progress=lambda done: None)
""",
)


def main() -> int:
    options = options_of(__doc__, sizes="256M,1G,4G", directory=("/dev/shm", "where the files are"))
    labels = options.sizes.split(",")
    found: dict[str, list[int | None]] = {}
    for label in labels:
        with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
            for name, peak in measure(size_of(label), Path(scratch)):
                found.setdefault(name, []).append(peak)
    rows = [(name, *("-" if peak is None else peak >> 20 for peak in peaks)) for name, peaks in found.items()]
    print(table(("MiB above the start", *labels), rows))
    known = [[peak for peak in peaks if peak is not None] for peaks in found.values()]
    return int(any(max(peaks) - peaks[0] > ALLOWED for peaks in known))


def measure(size: int, scratch: Path) -> list[tuple[str, int | None]]:
    root = fill(scratch / "model", size, 1)
    (root / "part0000").rename(root / "w")
    results: list[tuple[str, int | None]] = [("fetch", fetch(root / "w", size, scratch))]
    results += [("verify, whole", verify(root, scratch, None)), ("verify, in ranges", verify(root, scratch, 64 << 20))]
    for name, kind, encrypt in (("age", "identity", age), ("Tink", "keyset", tink), ("JWE", "jwe_key", jwe)):
        peak = None
        if name != "JWE" or size <= LARGEST_JWE:
            sealed, key = scratch / f"w.{name}", scratch / f"{name}.key"
            encrypt(root / "w", sealed, key)
            peak = child(DECRYPT, sealed, scratch / "plain", kind, key)
            for path in (sealed, scratch / "plain"):
                path.unlink()
        results.append((f"decrypt, {name}", peak))
    return results


def child(parts: tuple[str, str], *arguments: object) -> int:
    program = MEASURE.format(imports=parts[0], work=parts[1])
    return int(run([sys.executable, "-c", program, *arguments]).stdout)


def fetch(source: Path, size: int, scratch: Path) -> int:
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    command = [sys.executable, "-c", OURS, serve(source, size), f"sha256:{digest}", size, scratch / "cache"]
    _, before, peak = json.loads(run(command).stdout)
    subprocess.run(["chmod", "-R", "u+w", scratch / "cache"], check=True)
    subprocess.run(["rm", "-r", scratch / "cache"], check=True)
    return int(peak - before) << 10


def verify(root: Path, scratch: Path, shard_size: int | None) -> int:
    key = ec.generate_private_key(ec.SECP256R1())
    (scratch / "key.pem").write_bytes(public_pem(key))
    (scratch / "model.sig").write_bytes(sign(root, Identity(key), Serialization(shard_size=shard_size)))
    return child(VERIFY, root, scratch / "model.sig", scratch / "key.pem")


def age(source: Path, sealed: Path, key: Path) -> None:
    identity = X25519Identity.generate()
    key.write_text(identity.export())
    encrypt_age(source, sealed, [identity.recipient])


def tink(source: Path, sealed: Path, key: Path) -> None:
    """The keyset is in the form that Tink writes."""
    value = b"\x12\x08\x08\x80\x80\x40\x10\x20\x18\x03\x1a\x20" + os.urandom(32)
    data = {
        "typeUrl": "type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey",
        "value": base64.b64encode(value).decode(),
        "keyMaterialType": "SYMMETRIC",
    }
    entry = {"keyData": data, "status": "ENABLED", "keyId": 1, "outputPrefixType": "RAW"}
    key.write_text(json.dumps({"primaryKeyId": 1, "key": [entry]}))
    with Workers() as workers:
        encrypt_tink(source, sealed, parse_keyset(key.read_bytes(), "keyset")[0], workers=workers)


def jwe(source: Path, sealed: Path, key: Path) -> None:
    def text(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    secret, nonce = os.urandom(32), os.urandom(12)
    key.write_bytes(secret)
    header = text(b'{"alg":"dir","enc":"A256GCM"}')
    encryptor = Cipher(algorithms.AES(secret), modes.GCM(nonce)).encryptor()
    encryptor.authenticate_additional_data(header)
    with source.open("rb") as plain, sealed.open("wb") as out:
        out.write(header + b".." + text(nonce) + b".")
        while piece := plain.read(PIECE):
            out.write(text(encryptor.update(piece)))
        encryptor.finalize()
        out.write(b"." + text(encryptor.tag))


if __name__ == "__main__":
    sys.exit(main())
