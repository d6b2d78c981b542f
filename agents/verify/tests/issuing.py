"""Keys and certificates for the tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM
NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Issued:
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def issue(
    name: str,
    issuer: Issued | None = None,
    *,
    authority: bool = False,
    days: tuple[int, int] = (-1, 10),
    usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.CODE_SIGNING,
    signatures: bool = True,
    certificates: bool | None = None,
    authority_usage: x509.ObjectIdentifier | None = None,
    path_length: int | None = None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> Issued:
    """A certificate for ``name``, valid from ``days[0]`` to ``days[1]`` from now, by ``issuer`` or by itself.

    ``certificates``: whether it may sign certificates, as authorities do. ``authority_usage`` and ``path_length`` limit
    an authority. ``extensions`` are further ones, and whether they are critical.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by = issuer.certificate.subject if issuer else subject
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(NOW + timedelta(days[0])).not_valid_after(NOW + timedelta(days[1]))
    builder = builder.add_extension(x509.BasicConstraints(authority, path_length), True)
    signs = authority if certificates is None else certificates
    allowed = x509.KeyUsage(signatures, False, False, False, False, signs, authority, False, False)
    builder = builder.add_extension(allowed, True)
    limited = authority_usage if authority else usage
    if limited is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([limited]), False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return Issued(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))
