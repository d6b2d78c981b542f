"""``awskms:[KEY]?ciphertext-file=/path``: a key that AWS KMS wrapped. Extra ``awskms``.

``KEY`` (an id, alias or ARN) may be left out: the ciphertext names it. Further options: ``ciphertext`` (base64) instead
of the file, ``region``, and ``context.NAME`` for the encryption context. Credentials, region and endpoint come from
where all AWS tools take them (environment, profile, instance, ``AWS_ENDPOINT_URL_KMS``).
"""

from typing import Any
from urllib.parse import unquote

from repoagent.api import NotFoundError, UnavailableError, UnsupportedError, install_hint
from repoagent_decrypt.providers.reference import CIPHERTEXT_OPTIONS, Reference, ciphertext_bytes, parse_reference

_CONTEXT = "context."


def fetch(uri: str) -> bytes:
    """The plaintext of the ciphertext that ``uri`` carries or points to."""
    reference = parse_reference(uri, options={*CIPHERTEXT_OPTIONS, "region"}, prefixes=[_CONTEXT])
    blob = ciphertext_bytes(reference)
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise UnsupportedError(f"awskms: needs botocore; {install_hint('repoagent-decrypt', 'awskms')}") from None
    try:
        answer = _client(reference).decrypt(CiphertextBlob=blob, **_arguments(reference))
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        kind = NotFoundError if code == "NotFoundException" else UnavailableError
        raise kind(f"AWS KMS refuses the key reference {reference}: {code}") from None
    except BotoCoreError as error:
        # The text of these names endpoints and settings, no credentials.
        raise UnavailableError(f"AWS KMS cannot be asked for the key reference {reference}: {error}") from None
    plaintext: bytes = answer["Plaintext"]
    return plaintext


def _client(reference: Reference) -> Any:
    from botocore.config import Config
    from botocore.session import get_session

    config = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})
    return get_session().create_client("kms", region_name=reference.options.get("region"), config=config)


def _arguments(reference: Reference) -> dict[str, Any]:
    context = {
        name.removeprefix(_CONTEXT): value for name, value in reference.options.items() if name.startswith(_CONTEXT)
    }
    key = unquote(reference.path)
    return ({"EncryptionContext": context} if context else {}) | ({"KeyId": key} if key else {})
