"""Sign a model directory with a key, or with a key and its certificates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from repoagent.api import InvalidArgumentError
from repoagent.api.envelopes import HASHES, key_id, pre_authentication_encoding
from repoagent_verify.bundle import Bundle, Method, write_bundle
from repoagent_verify.manifest import DEFAULT_IGNORED, Manifest, Resource, Serialization
from repoagent_verify.statement import root_digest, write_statement
from repoagent_verify.tree import File, Ignored, Progress, digests_of, list_files


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signs: a private key, and its certificates (DER, the signer's first) if it has some."""

    key: ec.EllipticCurvePrivateKey
    certificates: tuple[bytes, ...] = ()


def read_identity(key: bytes, password: bytes | None, certificates: Sequence[bytes] = ()) -> Identity:
    """An identity from PEM text.

    Raises:
        InvalidArgumentError: the key is of another kind or cannot be read, or the first certificate is of another key.
    """
    try:
        private = serialization.load_pem_private_key(key, password)
        chain = [certificate for text in certificates for certificate in x509.load_pem_x509_certificates(text)]
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidArgumentError(f"the key or a certificate cannot be read: {error}") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name not in HASHES:
        raise InvalidArgumentError("the private key is of another kind; expected P-256, P-384 or P-521")
    if chain and chain[0].public_key() != private.public_key():
        raise InvalidArgumentError("the first certificate belongs to another key")
    return Identity(private, tuple(item.public_bytes(serialization.Encoding.DER) for item in chain))


def sign(
    root: Path,
    identity: Identity,
    how: Serialization,
    *,
    signature: str = "",
) -> bytes:
    """The bundle of the model below ``root``, signed by ``identity``. See :func:`statement_of`."""
    return sign_statement(statement_of(root, how, signature=signature), identity)


def statement_of(
    root: Path,
    how: Serialization,
    *,
    signature: str = "",
    progress: Progress = lambda _done, _total: None,
) -> bytes:
    """What is signed of the model below ``root``.

    Args:
        root: The model.
        how: The algorithm, the size of ranges, whether links are followed, and paths that are left out.
        signature: Where the bundle will lie, below ``root``; it does not cover itself. Empty: elsewhere.
        progress: Called with bytes done and bytes in all.

    Raises:
        VerificationError: the model has no file, or one that cannot be signed.
        InvalidArgumentError: a path to leave out is not a plain one.
    """
    ignored = (*DEFAULT_IGNORED, *how.ignore_paths, *((signature,) if signature else ()))
    files = list_files(root, Ignored(ignored), allow_symlinks=how.allow_symlinks)
    resources = [item for file in files for item in _ranges(file, how.shard_size)]
    if not resources:
        raise InvalidArgumentError(f"{root} has no file to sign")
    resources.sort(key=lambda item: item.name)
    digests = digests_of(root, resources, how, progress=progress)
    signed = tuple(
        Resource(item.path, digest, item.start, item.end) for item, digest in zip(resources, digests, strict=True)
    )
    recorded = replace(how, ignore_paths=ignored)
    manifest = Manifest(root.resolve().name, recorded, signed, root_digest(signed))
    return write_statement(manifest)


def _ranges(file: File, size: int | None) -> list[Resource]:
    if size is None:
        return [Resource(file.path, b"")]
    return [Resource(file.path, b"", begin, min(begin + size, file.size)) for begin in range(0, file.size, size)]


def sign_statement(payload: bytes, identity: Identity) -> bytes:
    """The bundle of what :func:`statement_of` made, signed by ``identity``."""
    digest = HASHES[identity.key.curve.name]
    signature = identity.key.sign(pre_authentication_encoding(payload), ec.ECDSA(digest))
    if identity.certificates:
        return write_bundle(Bundle(Method.CERTIFICATE, payload, signature, certificates=identity.certificates))
    hint = key_id(identity.key.public_key())
    return write_bundle(Bundle(Method.KEY, payload, signature, key_hint=hint))
