"""Credentials of stores, from the places that Triton reads: its credential file, and its variables for Azure.

The credential file is JSON: ``{"s3": {"s3://bucket": {"key_id": ..., "secret_key": ...}}, "gs": {"": "file"}, ...}``.
Of the prefixes that fit a URL, the longest counts; ``""`` fits all. What the file does not name comes from where the
store's own library looks.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from repoagent.beneath import read_small_file
from repoagent.errors import InvalidArgumentError, NotFoundError
from repoagent.nested_text import read_json
from repoagent.storage.repositories.url import RepositoryUrl

CREDENTIALS_VARIABLE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_LARGEST: Final = 1 << 20
_SECTIONS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "as", "az": "as", "abfss": "as"}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {"key_id": "key", "secret_key": "secret", "session_token": "token", "profile": "profile", "region": ""},
    "as": {"account_str": "account_name", "account_key": "account_key"},
}
"""Names in the file -> options of the filesystem."""


def with_credentials(url: RepositoryUrl, environment: Mapping[str, str] = os.environ) -> RepositoryUrl:
    """``url`` with what the operator's credential file and variables give it; what it has itself wins.

    Raises:
        NotFoundError: the file is not there.
        InvalidArgumentError: it cannot be understood.
    """
    section = _SECTIONS.get(url.protocol)
    if section is None:
        return url
    found = _from_file(url, section, environment) or (_azure(environment) if section == "as" else {})
    return replace(url, options={**found, **url.options}) if found else url


def _from_file(url: RepositoryUrl, section: str, environment: Mapping[str, str]) -> dict[str, Any]:
    path = environment.get(CREDENTIALS_VARIABLE)
    if not path:
        return {}
    entries = _read(path).get(section, {})
    if not isinstance(entries, dict):
        raise InvalidArgumentError(f"{CREDENTIALS_VARIABLE}: {section!r} is not an object of URL prefixes")
    fitting = [prefix for prefix in entries if not prefix or f"{url.text}/".startswith(prefix.rstrip("/") + "/")]
    if not fitting:
        return {}
    return _options(section, entries[max(fitting, key=len)])


def _read(path: str) -> dict[str, Any]:
    try:
        document = read_json(read_small_file(path, limit=_LARGEST))
    except OSError as error:
        raise NotFoundError(f"the file of {CREDENTIALS_VARIABLE} cannot be read: {error.strerror}") from None
    except ValueError:  # Its text may hold a secret.
        raise InvalidArgumentError(f"the file of {CREDENTIALS_VARIABLE} is not valid JSON") from None
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"the file of {CREDENTIALS_VARIABLE} is not a JSON object")
    return document


def _options(section: str, given: object) -> dict[str, Any]:
    if section == "gs" and isinstance(given, str):
        return {"token": given} if given else {}
    if section == "gs" or not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise InvalidArgumentError(f"{CREDENTIALS_VARIABLE}: an entry of {section!r} does not have the expected form")
    unknown = sorted(given.keys() - _NAMES[section].keys())
    if unknown:
        raise InvalidArgumentError(f"{CREDENTIALS_VARIABLE}: {section!r} has an entry with the name {unknown[0]!r}")
    options: dict[str, Any] = {new: given[old] for old, new in _NAMES[section].items() if new and given.get(old)}
    if given.get("region"):
        options["client_kwargs"] = {"region_name": given["region"]}
    return options


def _azure(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}
    return {option: environment[name] for name, option in names.items() if environment.get(name)}
