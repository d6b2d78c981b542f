"""How a model repository is spelled: a local path, any fsspec URL, or one of Triton's own forms."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from repoagent.beneath.opening import read_small_file
from repoagent.errors import InvalidArgumentError, NotFoundError, UnsafePathError
from repoagent.nested_text import read_json

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HOST: Final = r"(?:\[[0-9A-Fa-f:.]+\]|[^/:@\[\]]+)"
_S3_ENDPOINT: Final = re.compile(rf"(?:(https?)://({_HOST}(?::[0-9]+)?)|({_HOST}:[0-9]+))/(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    """A parsed repository URL.

    ``protocol`` and ``path`` are fsspec's (``"file"`` for local paths, which are absolute then); ``options`` are what
    the URL itself states about the filesystem, e.g. the endpoint. ``text`` is fit for messages and for
    :func:`parse_url` again, unless the URL held a credential: that is left out.
    """

    protocol: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    text: str = ""

    @property
    def is_local(self) -> bool:
        """Whether this is a directory of this machine."""
        return self.protocol == "file"

    def child(self, name: str) -> "RepositoryUrl":
        """The URL of ``name`` directly below."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}", text=f"{self.text.rstrip('/')}/{name}")


def parse_url(text: str) -> RepositoryUrl:
    """Read a repository URL.

    Understood: ``/path``, ``path``, ``file:///path``, ``memory://path``, ``http(s)://host/path``, ``hf://...``,
    ``gs://bucket/path``, ``s3://bucket/path``, any other fsspec protocol, and Triton's
    ``s3://host:port/bucket/path`` (plain HTTP), ``s3://https://host:port/bucket/path``, ``as://account/container/path``.

    Raises:
        InvalidArgumentError: it cannot be read, or carries a user name and password.
        UnsafePathError: it contains ``..`` (a local path may).
    """
    if not text or "\0" in text:
        raise InvalidArgumentError("a model repository cannot be an empty string or contain a NUL character")
    match = _URL.fullmatch(text)
    if match is None:
        return _local(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return _file(rest)
    if ".." in rest.split("/"):
        raise UnsafePathError(f"the repository URL '{scheme}://...' contains '..'")
    match scheme:
        case "s3":
            return _s3(rest)
        case "as":
            return _azure(rest)
        case "http" | "https":
            return _http(scheme, rest)
        case _:
            return _other(scheme, rest)


def _local(path: str) -> RepositoryUrl:
    absolute = os.path.abspath(path)
    return RepositoryUrl("file", absolute, text=absolute)


def _file(rest: str) -> RepositoryUrl:
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise InvalidArgumentError(f"'file://{rest}' names a host; a local path has three slashes: file:///path")
    return _local(path)


def _s3(rest: str) -> RepositoryUrl:
    match = _S3_ENDPOINT.fullmatch(rest)
    if match is None:
        return _bucket("s3", rest, {}, "s3://")
    scheme, explicit, plain, path = match.groups()
    endpoint = f"{scheme}://{explicit}" if scheme else f"http://{plain}"
    return _bucket("s3", path, {"endpoint_url": endpoint}, f"s3://{endpoint}/")


def _azure(rest: str) -> RepositoryUrl:
    place, _, token = rest.partition("?")
    host, _, path = place.partition("/")
    options = {"account_name": host.partition(".")[0]} | ({"sas_token": token} if token else {})
    return _bucket("abfs", path, options, f"as://{host}/")


def _bucket(protocol: str, path: str, options: Mapping[str, Any], prefix: str) -> RepositoryUrl:
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise InvalidArgumentError(f"'{prefix.rpartition('@')[2]}' names no bucket; expected {prefix[:5]}BUCKET/PATH")
    if "@" in parts[0] or parts[0] in ("http:", "https:"):
        raise InvalidArgumentError(
            f"cannot read the {prefix[:2]}:// URL of a repository: expected {prefix[:5]}BUCKET/PATH or "
            f"{prefix[:5]}https://HOST:PORT/BUCKET/PATH, without user name and password"
        )
    clean = "/".join(parts)
    return RepositoryUrl(protocol, clean, options, prefix + clean)


def _http(scheme: str, rest: str) -> RepositoryUrl:
    if "?" in rest or "#" in rest or "@" in rest.partition("/")[0] or not rest.strip("/"):
        raise InvalidArgumentError(
            f"cannot read the {scheme}:// URL of a repository: expected {scheme}://HOST/PATH without user name, "
            "password, query or fragment; give credentials as storage options"
        )
    url = f"{scheme}://{rest.rstrip('/')}"
    return RepositoryUrl(scheme, url, text=url)


def _other(scheme: str, rest: str) -> RepositoryUrl:
    path = rest.strip("/")
    if not path and scheme != "memory":
        raise InvalidArgumentError(f"'{scheme}://' names no place; expected {scheme}://PATH")
    if ":" in path.partition("/")[0].rpartition("@")[0]:
        raise InvalidArgumentError(
            f"cannot read the {scheme}:// URL of a repository: it must not hold a user name and password"
        )
    return RepositoryUrl(scheme, f"/{path}" if scheme == "memory" else path, text=f"{scheme}://{path}")


CREDENTIALS_VARIABLE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_LARGEST: Final = 1 << 20
_SECTIONS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "as", "az": "as", "abfss": "as"}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {"key_id": "key", "secret_key": "secret", "session_token": "token", "profile": "profile", "region": ""},
    "as": {"account_str": "account_name", "account_key": "account_key"},
}
"""Names in the file -> options of the filesystem."""


def with_credentials(url: RepositoryUrl, environment: Mapping[str, str] = os.environ) -> RepositoryUrl:
    """``url`` with what the operator's credential file and variables give it; what it has itself wins. Raises
    ``NotFoundError`` without the file, and ``InvalidArgumentError`` if it cannot be understood."""
    section = _SECTIONS.get(url.protocol)
    if section is None:
        return url
    found = _from_file(url, section, environment) or (_azure_variables(environment) if section == "as" else {})
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


def _azure_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}
    return {option: environment[name] for name, option in names.items() if environment.get(name)}
