"""Sign with an identity instead of a key: Sigstore gives a certificate for ten minutes, and notes the signature."""

from repoagent.api import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError, install_hint

__all__ = ["sign_keyless"]


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
