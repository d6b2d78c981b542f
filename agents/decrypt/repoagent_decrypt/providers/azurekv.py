"""``azurekv://VAULT.vault.azure.net/secrets/NAME[/VERSION]``: a secret of Azure Key Vault. Extra ``azurekv``.

Credentials are those of ``DefaultAzureCredential``.
"""

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError, install_hint
from repoagent_decrypt.providers.reference import parse_reference

SecretName = tuple[str, str, str | None]
"""URL of the vault, name, version."""


def fetch(uri: str) -> bytes:
    """The value of the secret."""
    url, name, version = secret_name(uri)
    try:
        from azure.identity import DefaultAzureCredential
        from azure.keyvault.secrets import SecretClient
    except ImportError:
        raise UnsupportedError(
            f"azurekv: needs azure-keyvault-secrets and azure-identity; {install_hint('repoagent-decrypt', 'azurekv')}"
        ) from None
    try:
        value = SecretClient(vault_url=url, credential=DefaultAzureCredential()).get_secret(name, version).value
    except Exception as error:
        raise UnavailableError(f"Azure Key Vault refuses the secret {name}: {type(error).__name__}") from None
    text: str = value or ""
    return text.encode()


def secret_name(uri: str) -> SecretName:
    """What ``uri`` names.

    Raises:
        InvalidArgumentError: it names no secret of a vault.
    """
    reference = parse_reference(uri)
    kind, name, version, *rest = [*reference.parts(), None, None]
    if kind != "secrets" or not name or any(rest) or "." not in reference.host or "@" in reference.host:
        raise InvalidArgumentError(
            f"the key reference {reference} should look like azurekv://myvault.vault.azure.net/secrets/name"
        )
    return f"https://{reference.host}", name, version
