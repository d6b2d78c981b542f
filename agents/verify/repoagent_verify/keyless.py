"""Sigstore's keyless signatures: made by its services, verified offline from a root that the operator pinned.

A signer without a key of its own shows an identity (a mail address, a workflow) to a provider (the issuer), gets a
certificate for ten minutes, signs, and has that noted in a public log. Everyone can do so: what makes a signature
trusted is the identity, so it must be given.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cryptography import x509

from repoagent.api import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError, install_hint
from repoagent_verify.bundle import PAYLOAD_TYPE
from repoagent_verify.manifest import VerificationError
from repoagent_verify.trust_roots import Trust

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot

_REFS: Final = "@refs/"


def check_identity(identity: str | None, issuer: str | None) -> None:
    """Refuse half an identity, and one that stands for too many.

    ``*`` at the end of an identity stands for the rest of a branch or tag, nothing else.

    Raises:
        InvalidArgumentError: only one is given, or there is another ``*``.
    """
    if (identity is None) != (issuer is None):
        given, missing = ("identity", "issuer") if issuer is None else ("issuer", "identity")
        raise InvalidArgumentError(f"'{given}' is given without '{missing}': a keyless signer needs both")
    if identity is None:
        return
    before = identity.removesuffix("*")
    if not identity or not issuer or "*" in before or (before != identity and _REFS not in before):
        raise InvalidArgumentError(
            f"identity {identity[:200]!r} is not valid: give the whole of it; only a branch or tag may end with '*', "
            "such as https://github.com/OWNER/NAME/.github/workflows/release.yml@refs/tags/*"
        )


def check_root(trust: Trust, identity: str | None) -> None:
    """Refuse a root of Sigstore without an identity, and an identity without a root.

    Raises:
        InvalidArgumentError: one of them is missing.
    """
    if trust.sigstore is not None and identity is None:
        raise InvalidArgumentError(
            "a root of Sigstore is trusted, and everyone can sign with that: give 'identity' and 'issuer' of the signer"
        )
    if trust.sigstore is None and identity is not None:
        raise InvalidArgumentError(
            "'identity' is given without a root of Sigstore: name a trusted_root.json as trust root"
        )


def verify_keyless(document: bytes, payload: bytes, trust: Trust) -> str:
    """Verify the bundle ``document``, which signs ``payload``; the identity of the signer.

    Verified are: the certificate's chain at the time of signing, that time (by a timestamp or the log's promise), the
    certificate's place in its log, the signature's entry in the log with proof and checkpoint, and the signature.

    Raises:
        VerificationError: something of this does not hold, or someone else signed.
        UnsupportedError: the package ``sigstore`` is not installed.
    """
    if trust.sigstore is None:
        raise VerificationError(
            "the model is signed without a key (Sigstore keyless), and no Sigstore root is trusted here"
        )
    if trust.identity is None or trust.issuer is None:
        raise VerificationError(
            "the model is signed without a key (Sigstore keyless), which everyone can do: "
            "give 'identity' and 'issuer' of the signer"
        )
    root = _read_root(trust.sigstore)
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify import Verifier

    demanded = _Demanded(trust.identity, trust.issuer)
    try:
        kind, signed = Verifier(trusted_root=root).verify_dsse(Bundle.from_json(document), demanded)
    except VerificationError:
        raise
    except Error as error:
        raise VerificationError(f"the keyless signature does not hold: {_one_line(error)}") from None
    except Exception as error:  # Bundles are hostile, and the library parses them with several others.
        raise VerificationError(
            f"the keyless signature cannot be verified: {type(error).__name__}: {_one_line(error)}"
        ) from None
    if kind != PAYLOAD_TYPE or signed != payload or not demanded.found:
        raise VerificationError("the keyless signature covers another statement than the one in the bundle")
    return demanded.found


def _one_line(error: Exception) -> str:
    """The library's reason, without the input that pydantic adds to it."""
    return " ".join(str(error).partition("[type=")[0].split())[:300]


def _read_root(data: bytes) -> "TrustedRoot":
    try:
        from sigstore.models import TrustedRoot
        from sigstore_models.trustroot.v1 import TrustedRoot as Document
    except ImportError:
        raise UnsupportedError(
            f"keyless signatures need a package; {install_hint('repoagent-verify', 'sigstore')}"
        ) from None
    try:
        return TrustedRoot(Document.from_json(data))
    except Exception as error:  # as above; the file is the operator's
        raise InvalidArgumentError(f"the Sigstore root cannot be read: {type(error).__name__}") from None


class _Demanded:
    """What the library asks about the signer's certificate, once that leads to the root."""

    def __init__(self, identity: str, issuer: str) -> None:
        self._identity = identity
        self._issuer = issuer
        self.found = ""

    def verify(self, cert: x509.Certificate) -> None:
        """Raise unless ``cert`` is of the identity and the issuer."""
        from sigstore.errors import Error
        from sigstore.verify.policy import AnyOf, OIDCIssuer, OIDCIssuerV2

        names = _names(cert)
        if len(names) != 1:
            raise VerificationError(f"the signer's certificate has {len(names)} identities, expected one")
        if not _fits(names[0], self._identity):
            raise VerificationError(f"the model is signed by {names[0][:300]!r}, expected '{self._identity}'")
        try:
            AnyOf([OIDCIssuer(self._issuer), OIDCIssuerV2(self._issuer)]).verify(cert)
        except Error:
            raise VerificationError(
                f"the model is signed by {names[0][:300]!r}, but with another issuer than '{self._issuer}'"
            ) from None
        self.found = names[0]


def _fits(name: str, identity: str) -> bool:
    if identity.endswith("*"):
        start = identity.removesuffix("*")
        return name.startswith(start) and len(name) > len(start)
    return name == identity


def _names(certificate: x509.Certificate) -> Sequence[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [name.value if isinstance(name, x509.RFC822Name | x509.UniformResourceIdentifier) else "" for name in names]


def sign_keyless(statement: bytes, *, token: str | None = None, trust_config: str | None = None) -> bytes:
    """The bundle of ``statement``, which is made public by name and digest in the log of signatures.

    Args:
        statement: See :func:`~repoagent_verify.signing.statement_of`.
        token: An identity token for Sigstore; None: the one that CI gives this job.
        trust_config: JSON that names the services of a private Sigstore; None: the public one.

    Raises:
        UnsupportedError: the package ``sigstore`` is not installed.
        InvalidArgumentError: there is no token.
        UnavailableError: Sigstore cannot be reached, or refuses.
    """
    try:
        from sigstore.dsse import Statement
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext
    except ImportError:
        raise UnsupportedError(
            f"keyless signatures need a package; {install_hint('repoagent-verify', 'sigstore')}"
        ) from None
    try:
        given = token or detect_credential()
        if not given:
            raise InvalidArgumentError(
                "there is no identity token: give --identity-token, or run this in a CI job that gets one "
                "(GitHub Actions: permissions: id-token: write)"
            )
        config = ClientTrustConfig.from_json(trust_config) if trust_config else ClientTrustConfig.production()
        with SigningContext.from_trust_config(config).signer(IdentityToken(given)) as signer:
            return signer.sign_dsse(Statement(statement)).to_json().encode()
    except RepoAgentError:
        raise
    except Exception as error:  # The library and what it stands on have no common base.
        reason = " ".join(str(error).split())[:300]
        raise UnavailableError(f"Sigstore did not sign: {type(error).__name__}: {reason}") from None
