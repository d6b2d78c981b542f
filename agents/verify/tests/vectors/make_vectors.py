"""Make the signatures beside this file with releases of the reference tool, model-signing (Apache-2.0).

    python make_vectors.py keys DIR                     # once: keys, certificates, the model
    python make_vectors.py sign DIR                     # in an environment with one release of model-signing each

The releases were 0.2.0, 0.3.1 and 1.0.1 with ``sigstore<4``, and 1.1.1; all with pyOpenSSL. DIR holds the private keys,
which are not kept; ``*.sig``, ``key.pub``, ``ca.pem`` and ``model/`` are.
"""

import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

MODEL = {"config.pbtxt": b'backend: "onnxruntime"\n', "1/model.onnx": bytes(range(256)) * 4, "1/labels.txt": b"a\nb\n"}


def make_keys(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def write(file: str, key: ec.EllipticCurvePrivateKey) -> None:
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (folder / file).write_bytes(pem)

    authority, signer = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP256R1())
    begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
    base = x509.CertificateBuilder().not_valid_before(begin).not_valid_after(end).issuer_name(name("test authority"))
    root = (
        base.subject_name(name("test authority"))
        .public_key(authority.public_key())
        .serial_number(1)
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False)
        .sign(authority, hashes.SHA384())
    )
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    leaf = (
        base.subject_name(name("test signer"))
        .public_key(signer.public_key())
        .serial_number(2)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(usage, True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False)
        .sign(authority, hashes.SHA384())
    )
    write("signer.key", signer)
    public = signer.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "key.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, form))
    (folder / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "leaf.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    for path, content in MODEL.items():
        (folder / "model" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "model" / path).write_bytes(content)


def sign(folder: Path) -> None:
    release = version("model-signing")
    (sign_0_2 if release.startswith("0.2") else sign_1)(folder, release)


def sign_1(folder: Path, release: str) -> None:
    # The high-level configuration of 0.3.1 and 1.0.1 asks Sigstore's server for its roots first.
    from model_signing import hashing
    from model_signing._signing import sign_certificate, sign_ec_key, signing

    key = sign_ec_key.Signer(folder / "signer.key")
    certificate = sign_certificate.Signer(folder / "signer.key", folder / "leaf.pem", [folder / "ca.pem"])
    files = hashing.Config()
    ranges = hashing.Config().use_shard_serialization(hashing_algorithm="sha256", shard_size=100)
    other = hashing.Config().use_file_serialization(hashing_algorithm="blake2")
    for name, signer, how in (
        ("key", key, files),
        ("certificate", certificate, files),
        ("shards", key, ranges),
        ("blake2", key, other),
    ):
        payload = signing.Payload(how.hash(folder / "model"))
        signer.sign(payload).write(folder / f"{release}-{name}.sig")


def sign_0_2(folder: Path, release: str) -> None:
    from model_signing import model
    from model_signing.hashing import file, memory
    from model_signing.serialization import serialize_by_file
    from model_signing.signature import key, pki
    from model_signing.signing import in_toto, in_toto_signature

    def hasher(path: Path) -> file.SimpleFileHasher:
        return file.SimpleFileHasher(path, memory.SHA256())

    serializer = serialize_by_file.ManifestSerializer(file_hasher_factory=hasher)
    for name, inner in (
        ("key", key.ECKeySigner.from_path(str(folder / "signer.key"))),
        ("certificate", pki.PKISigner.from_path(folder / "signer.key", folder / "leaf.pem", [folder / "ca.pem"])),
    ):
        signature = model.sign(
            folder / "model",
            signer=in_toto_signature.IntotoSigner(inner),
            payload_generator=in_toto.DigestsIntotoPayload.from_manifest,
            serializer=serializer,
            ignore_paths=[],
        )
        signature.write(folder / f"{release}-{name}.sig")


if __name__ == "__main__":
    {"keys": make_keys, "sign": sign}[sys.argv[1]](Path(sys.argv[2]))
