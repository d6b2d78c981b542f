"""A whole Sigstore of the test: an authority, a log of certificates, and a log of signatures with a real tree.

What it issues is judged by the package ``sigstore``, which this project did not write.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from repoagent_verify.bundle import MEDIA_TYPE, PAYLOAD_TYPE

from repoagent.api.envelopes import pre_authentication_encoding

IDENTITY = "https://github.com/acme/models/.github/workflows/release.yml@refs/tags/v1.2.0"
ISSUER = "https://token.actions.githubusercontent.com"
_ISSUER, _ISSUER_V2 = (x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}") for number in (1, 8))
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_CODE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(public(key)).digest()


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class PrivateSigstore:
    """Everything may be replaced between two signatures: another key is a log that nobody trusts."""

    root_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    authority_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    entries: list[bytes] = field(default_factory=lambda: [b"an entry of somebody else %d" % n for n in range(12)])

    def __post_init__(self) -> None:
        self.root = _authority("root", "root", self.root_key, self.root_key)
        self.authority = _authority("authority", "root", self.authority_key, self.root_key, self.root)

    def trusted_root(self, **other: Any) -> bytes:
        """As an operator pins it. ``other`` replaces members."""
        begin = {"start": "2020-01-01T00:00:00Z"}
        chain = [{"rawBytes": text(one.public_bytes(Encoding.DER))} for one in (self.authority, self.root)]
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log("https://rekor.test", self.log, begin)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "test", "commonName": "authority"},
                    "uri": "https://fulcio.test",
                    "certChain": {"certificates": chain},
                    "validFor": begin,
                }
            ],
            "ctlogs": [_log("https://ctfe.test", self.certificate_log, begin)],
            **other,
        }
        return json.dumps(document).encode()

    def bundle(
        self,
        payload: bytes,
        *,
        identity: x509.GeneralName | None = None,
        issuer: str = ISSUER,
        issued: datetime | None = None,
        integrated: datetime | None = None,
        usage: x509.ExtendedKeyUsage = _CODE,
        promise: bool = True,
    ) -> dict[str, Any]:
        """The bundle of ``payload``, signed by ``identity`` with a certificate for ten minutes from ``issued`` on."""
        key, begin = new_key(), issued or datetime.now(UTC).replace(microsecond=0)
        name = identity or x509.UniformResourceIdentifier(IDENTITY)
        leaf = self.issue(key.public_key(), name, issuer, begin, usage)
        signature = sign(key, pre_authentication_encoding(payload))
        entry = self.enter(leaf, payload, signature, integrated or begin + timedelta(seconds=5), promise=promise)
        return {
            "mediaType": MEDIA_TYPE,
            "verificationMaterial": {
                "certificate": {"rawBytes": text(leaf.public_bytes(Encoding.DER))},
                "tlogEntries": [entry],
                "timestampVerificationData": {},
            },
            "dsseEnvelope": {
                "payload": text(payload),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": text(signature)}],
            },
        }

    def enter(
        self, leaf: x509.Certificate, payload: bytes, signature: bytes, moment: datetime, *, promise: bool
    ) -> dict[str, Any]:
        """What the log gives out for a signature."""
        signatures = [{"signature": text(signature), "verifier": text(leaf.public_bytes(Encoding.PEM))}]
        hashed = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        spec = {"envelopeHash": hashed, "payloadHash": hashed, "signatures": signatures}
        body = _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        index = len(self.entries)
        self.entries.append(body)
        time = int(moment.timestamp())
        promised = _canonical(
            {"body": text(body), "integratedTime": time, "logID": key_id(self.log).hex(), "logIndex": index}
        )
        leaves = [hashlib.sha256(b"\0" + one).digest() for one in self.entries]
        root = text(_root(leaves))
        note = f"rekor.test - 1\n{len(leaves)}\n{root}\n"
        signed = text(key_id(self.log)[:4] + sign(self.log, note.encode()))
        entry: dict[str, Any] = {
            "logIndex": str(index),
            "logId": {"keyId": text(key_id(self.log))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": text(sign(self.log, promised))},
            "inclusionProof": {
                "logIndex": str(index),
                "rootHash": root,
                "treeSize": str(len(leaves)),
                "hashes": [text(one) for one in _path(index, leaves)],
                "checkpoint": {"envelope": f"{note}\n\u2014 rekor.test {signed}\n"},
            },
            "canonicalizedBody": text(body),
        }
        if not promise:
            del entry["inclusionPromise"]
        return entry

    def issue(
        self,
        key: Any,
        identity: x509.GeneralName,
        issuer: str,
        begin: datetime,
        usage: x509.ExtendedKeyUsage = _CODE,
    ) -> x509.Certificate:
        """A certificate of the public ``key`` for ten minutes, with its place in the log of certificates."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.authority.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(minutes=10))
            .add_extension(_key_usage(authority=False), True)
            .add_extension(usage, False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
            .add_extension(_issued_by(self.authority), False)
            .add_extension(x509.SubjectAlternativeName([identity]), True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), False)
            .add_extension(x509.UnrecognizedExtension(_ISSUER_V2, _der(0x0C, issuer.encode())), False)
        )
        bare = builder.sign(self.authority_key, hashes.SHA256())
        noted = self._noted(bare.tbs_certificate_bytes, begin)
        return builder.add_extension(x509.UnrecognizedExtension(_SCTS, noted), False).sign(
            self.authority_key, hashes.SHA256()
        )

    def _noted(self, certificate: bytes, moment: datetime) -> bytes:
        """The list with the one timestamp of the log of certificates (RFC 6962, section 3.2)."""
        time = int(moment.timestamp()) * 1000
        length = len(certificate).to_bytes(3, "big")
        entry = key_id(self.authority_key) + length + certificate
        signature = sign(self.certificate_log, struct.pack("!BBQH", 0, 0, time, 1) + entry + b"\0\0")
        one = b"\0" + key_id(self.certificate_log) + struct.pack("!QHBBH", time, 0, 4, 3, len(signature)) + signature
        return _der(0x04, struct.pack("!HH", len(one) + 2, len(one)) + one)


def _log(url: str, key: ec.EllipticCurvePrivateKey, begin: dict[str, str]) -> dict[str, Any]:
    details = {"rawBytes": text(public(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": begin}
    return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": details, "logId": {"keyId": text(key_id(key))}}


def _authority(
    name: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    above: x509.Certificate | None = None,
) -> x509.Certificate:
    def named(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    builder = (
        x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer)).public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2120, 1, 1, tzinfo=UTC)
    )
    builder = builder.add_extension(_key_usage(authority=True), True)
    builder = builder.add_extension(x509.BasicConstraints(True, 1 if above is None else 0), True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    if above is not None:
        builder = builder.add_extension(_CODE, False).add_extension(_issued_by(above), False)
    return builder.sign(by, hashes.SHA256())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)


def _issued_by(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = (
        bytes([size]) if size < 128 else b"\x81" + bytes([size]) if size < 256 else b"\x82" + size.to_bytes(2, "big")
    )
    return bytes([tag]) + length + content


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _half(count: int) -> int:
    """The largest power of two below ``count`` (RFC 6962, section 2.1)."""
    return 1 << ((count - 1).bit_length() - 1)


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = _half(len(leaves))
    return hashlib.sha256(b"\1" + _root(leaves[:half]) + _root(leaves[half:])).digest()


def _path(index: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    half = _half(len(leaves))
    if index < half:
        return [*_path(index, leaves[:half]), _root(leaves[half:])]
    return [*_path(index - half, leaves[half:]), _root(leaves[:half])]
