"""``gcpkms:projects/P/locations/L/keyRings/R/cryptoKeys/K?ciphertext-file=/path``: a key that Cloud KMS wrapped.

Extra ``gcpkms``. ``ciphertext`` (base64) may take the place of the file. Credentials are the application default ones.
"""

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError, install_hint
from repoagent_decrypt.providers.reference import CIPHERTEXT_OPTIONS, ciphertext_bytes, parse_reference


def fetch(uri: str) -> bytes:
    """The plaintext of the ciphertext that ``uri`` carries or points to."""
    name = key_name(uri)
    reference = parse_reference(uri, options=CIPHERTEXT_OPTIONS)
    blob = ciphertext_bytes(reference)
    try:
        from google.cloud import kms
    except ImportError:
        raise UnsupportedError(
            f"gcpkms: needs google-cloud-kms; {install_hint('repoagent-decrypt', 'gcpkms')}"
        ) from None
    try:
        answer = kms.KeyManagementServiceClient().decrypt(request={"name": name, "ciphertext": blob})
    except Exception as error:
        raise UnavailableError(f"Cloud KMS refuses the key reference {reference}: {type(error).__name__}") from None
    plaintext: bytes = answer.plaintext
    return plaintext


def key_name(uri: str) -> str:
    """The resource name in ``uri``.

    Raises:
        InvalidArgumentError: it is not one of a key.
    """
    reference = parse_reference(uri, options=CIPHERTEXT_OPTIONS)
    parts = reference.parts()
    if parts[::2] != ["projects", "locations", "keyRings", "cryptoKeys"] or len(parts) != 8 or reference.host:
        raise InvalidArgumentError(
            f"the key reference {reference} should look like gcpkms:projects/P/locations/L/keyRings/R/cryptoKeys/K"
        )
    return "/".join(parts)
