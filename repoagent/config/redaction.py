"""Hiding what looks like a secret before a configuration is shown, logged or sent to a client.

Keys do not belong in a configuration, only references to them do; but people put them there all the same.
"""

import re
from typing import Any, Final

from google.protobuf.message import Message

from repoagent.config.json_form import is_agent_parameters, is_map, map_fields
from repoagent.config.model_config_pb2 import ModelConfig

#: What is shown in place of a secret.
REDACTED: Final = "<redacted>"

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Looked for in a key without its separators: "db_password", "apiKey" and "AWS-SECRET-ACCESS-KEY" all have one.
_SECRET_STEMS: Final = (
    *("password", "passwd", "passphrase", "passcode", "secret", "credential", "authorization", "bearer"),
    *("apikey", "privatekey", "secretkey", "accesskey", "accountkey", "signingkey", "encryptionkey", "decryptionkey"),
    "connectionstring",
)
# "token" at the end is a credential, but not where the key is about tokens of text, as in "pad_token".
_TEXT_TOKENS: Final = frozenset(
    ("bos", "cls", "delimiter", "end", "eos", "mask", "pad", "sep", "separator", "special", "start", "stop", "unk")
)

# A reference states where a secret is, so it may be shown; a value after it that is itself a secret is caught below.
_REFERENCE: Final = re.compile(
    r"(env|file|exec|kbs|vault|hashivault|awskms|aws-kms|awssm|gcpkms|gcp-kms|gcpsm|azurekms|azure-kms|azurekv|"
    r"pkcs11|tpm|tpm2|keyring|k8s|systemd-creds):\S*",
    re.IGNORECASE,
)

_SECRET_VALUE: Final = re.compile(
    r"""AGE-SECRET-KEY-                          # age identities, post-quantum ones too
      | -----BEGIN\ [A-Z\ ]*PRIVATE\ KEY         # PEM, PKCS#8, OpenSSH, PGP
      | \b(AKIA|ASIA)[A-Z0-9]{16}\b              # AWS
      | \b(ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{36}  # GitHub
      | \bgithub_pat_\w{22}
      | \bglpat-[\w-]{20}                        # GitLab
      | \bhf_[A-Za-z0-9]{30}                     # Hugging Face
      | \bsk-[A-Za-z0-9_-]{20}                   # OpenAI and others
      | \bxox[abprs]-[A-Za-z0-9-]{10}            # Slack
      | \bAIza[\w-]{35}                          # Google
      | \bhvs\.[\w-]{20}                         # Vault
      | (?<![\w-])(?=[\w-]*+\.eyJ[\w-]{8,}+\.)[\w-]*?\beyJ[\w-]{8}  # JSON web tokens, each name read once
      | ://[^/@\s:]+:[^/@\s]+@                   # a password in a URL
      | \b(AccountKey|SharedAccessKey|SharedAccessSignature|sig)=[^;&\s]{8,}  # Azure
    """,
    re.VERBOSE,
)


def redact(config: ModelConfig) -> ModelConfig:
    """A copy of ``config`` in which every parameter that looks like a secret reads ``<redacted>``.

    Looked at are the parameters of agents, of the model and of accelerators, and every other map of strings.
    References such as ``env:NAME`` or ``kbs:///path`` stay readable, whatever their key is called.
    """
    shown = ModelConfig()
    shown.CopyFrom(config)
    _redact_message(shown)
    return shown


def is_secret(key: str, value: str) -> bool:
    """Whether the parameter ``key`` = ``value`` should not be shown."""
    if _SECRET_VALUE.search(value):
        return True
    return bool(value) and _names_a_secret(key) and not _REFERENCE.fullmatch(value)


def _names_a_secret(key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(key)]
    letters = "".join(words)
    if any(stem in letters for stem in _SECRET_STEMS):
        return True
    return letters.endswith("token") and not _TEXT_TOKENS.intersection(words)


def _redact_message(message: Message) -> None:
    for field, value in message.ListFields():
        if is_map(field):
            _redact_map(value, map_fields(field)[1].message_type is not None)
        elif is_agent_parameters(field):
            for parameter in value:
                parameter.value = _shown(parameter.key, parameter.value)
        elif field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                _redact_message(child)


def _redact_map(values: Any, holds_messages: bool) -> None:
    for key in values:
        if not holds_messages:
            values[key] = _shown(key, values[key])
        elif hasattr(values[key], "string_value"):
            values[key].string_value = _shown(key, values[key].string_value)


def _shown(key: str, value: str) -> str:
    return REDACTED if is_secret(key, value) else value
