"""``vault:kv/MOUNT/PATH#FIELD`` (key/value, version 2) and ``vault:transit/MOUNT/KEY?ciphertext-file=...``.

Address and credentials are HashiCorp's own: ``VAULT_ADDR``, ``VAULT_TOKEN`` or the file ``~/.vault-token``,
``VAULT_NAMESPACE``, ``VAULT_CACERT``.
"""

import base64
import binascii
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from repoagent.api import InvalidArgumentError, NotFoundError, UnavailableError, read_json_object
from repoagent_decrypt.providers.http import Answer, HttpRequest, check_base_url
from repoagent_decrypt.providers.reference import (
    CIPHERTEXT_OPTIONS,
    Reference,
    ciphertext_text,
    parse_reference,
)

logger = logging.getLogger("repoagent.agents.decrypt")

_SERVICE: Final = "Vault"
_WRAPPED: Final = re.compile(r"vault:v[1-9][0-9]*:[A-Za-z0-9+/_=-]+")
_FORM: Final = "vault:kv/MOUNT/PATH#FIELD or vault:transit/MOUNT/KEY?ciphertext-file=/path"


def fetch(uri: str) -> bytes:
    """The field of the secret, or the unwrapped key."""
    engine = uri.partition(":")[2].partition("/")[0]
    match engine:
        case "kv":
            return _from_kv(parse_reference(uri, options={"version"}))
        case "transit":
            return _from_transit(parse_reference(uri, options=CIPHERTEXT_OPTIONS))
        case _:
            raise InvalidArgumentError(f"a vault: key reference should look like {_FORM}")


def _from_kv(reference: Reference) -> bytes:
    _, mount, *path = _parts(reference)
    query = f"?version={quote(reference.options['version'])}" if "version" in reference.options else ""
    data = _ask(reference, f"{mount}/data/{'/'.join(path)}{query}", None)
    fields = data.get("data")
    if not isinstance(fields, Mapping):
        raise NotFoundError(f"Vault has no secret for the key reference {reference}")
    name = reference.field or (next(iter(fields)) if len(fields) == 1 else "")
    value = fields.get(name)
    if not isinstance(value, str):
        wanted = f"no text field '{name}'" if name else "several fields; choose one with #FIELD"
        raise NotFoundError(f"the secret of the key reference {reference} has {wanted}")
    return value.encode()


def _from_transit(reference: Reference) -> bytes:
    _, mount, *path = _parts(reference)
    if len(path) != 1 or reference.field:
        raise InvalidArgumentError(f"the key reference {reference} should look like {_FORM}")
    body = json.dumps({"ciphertext": ciphertext_text(reference, _WRAPPED)}).encode()
    plaintext = _ask(reference, f"{mount}/decrypt/{path[0]}", body).get("plaintext")
    try:
        return base64.b64decode(plaintext if isinstance(plaintext, str) else "!", validate=True)
    except binascii.Error:
        raise UnavailableError(f"Vault's answer for the key reference {reference} makes no sense") from None


def _parts(reference: Reference) -> list[str]:
    parts = reference.parts(slashes=True)
    if len(parts) < 3 or reference.host:
        raise InvalidArgumentError(f"the key reference {reference} should look like {_FORM}")
    # A mount may have slashes of its own, given as %2F; they are slashes in Vault's URLs.
    return [quote(part, safe="/") for part in parts]


def _ask(reference: Reference, path: str, body: bytes | None) -> Mapping[str, Any]:
    base = check_base_url(os.environ.get("VAULT_ADDR") or "https://127.0.0.1:8200", "VAULT_ADDR")
    headers = {"X-Vault-Token": _token(), "X-Vault-Request": "true", "Content-Type": "application/json"}
    if namespace := os.environ.get("VAULT_NAMESPACE"):
        headers["X-Vault-Namespace"] = namespace
    url = f"{base}/v1/{path}"
    answer = HttpRequest(_SERVICE, url, headers, body, ca_file=os.environ.get("VAULT_CACERT") or None).send()
    if answer.status == 404:
        raise NotFoundError(f"Vault has nothing for the key reference {reference}")
    if answer.status != 200:
        # Vault's words are for the operator: the reference may be another's, and they go where its writer reads them.
        logger.warning("Vault refuses the key reference %s (HTTP %d%s)", reference, answer.status, _why(answer))
        raise UnavailableError(f"Vault refuses the key reference {reference} (HTTP {answer.status})")
    data = _json(answer).get("data")
    return data if isinstance(data, Mapping) else {}


def _token() -> str:
    if token := os.environ.get("VAULT_TOKEN"):
        return token
    try:
        return (Path.home() / ".vault-token").read_text().strip()
    except OSError:
        raise UnavailableError("no token for Vault: set VAULT_TOKEN, or log in with `vault login`") from None


def _why(answer: Answer) -> str:
    errors = _json(answer).get("errors")
    return f": {'; '.join(map(str, errors))[:200]}" if isinstance(errors, list) and errors else ""


def _json(answer: Answer) -> Mapping[str, Any]:
    try:
        return read_json_object(answer.body)
    except ValueError:
        return {}
