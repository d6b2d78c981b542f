"""``models:/NAME/VERSION`` and ``models:/NAME@ALIAS``: a model of an MLflow registry, over its REST interface."""

import os
import re
from collections import deque
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from repoagent.api import AgentModel, InvalidArgumentError, RemoteFile, WebAnswer, WebClient
from repoagent_fetch.fetch_options import Options
from repoagent_fetch.plan import Headers, Plan, check_pinned, chosen, headers_of, with_headers
from repoagent_fetch.server_answers import check_cancelled, document, field, items, number, text
from repoagent_fetch.stores import resolve_at

_URL: Final = re.compile(r"models:/([^/@]+)(?:/([0-9]+)|@([^/@]+))")
_VARIABLE: Final = "MLFLOW_TRACKING_URI"
_FOLDERS: Final = 10_000


def resolve(model: AgentModel, options: Options) -> Plan:
    """The files of a model version."""
    match = _URL.fullmatch(options.url)
    if match is None:
        raise InvalidArgumentError(f"{options.url[:200]!r} is not a model of a registry; expected models:/NAME/VERSION")
    base = server(model, options)
    split = urlsplit(base)
    allow = (f"{split.hostname}:{split.port or (443 if split.scheme == 'https' else 80)}",)
    client, headers = model.web(allow=allow), headers_of(model, options)
    name, version, alias = match.groups()
    what = f"model {name} of the MLflow registry"
    if alias:
        check_pinned(model, options, f"the alias '{alias}' of {what}", "give a version and digests")
        answer = _ask(client, headers, f"{base}/api/2.0/mlflow/registered-models/alias", {"name": name, "alias": alias})
        version = text(field(document(answer, what), "model_version", what), "version", what)
    wanted = {"name": name, "version": version}
    answer = _ask(client, headers, f"{base}/api/2.0/mlflow/model-versions/get-download-uri", wanted)
    place = text(document(answer, what), "artifact_uri", what)
    if not place.startswith("mlflow-artifacts:"):
        if place.startswith(("file:", "/")) or ":" not in place:
            raise InvalidArgumentError(f"{what} lies in a directory of its server ({place[:20]}...), not in a store")
        return resolve_at(model, options, place, allow)
    return _served(model, options, (client, headers, base, allow), place)


def _served(
    model: AgentModel, options: Options, asked: tuple[WebClient, Headers | None, str, tuple[str, ...]], place: str
) -> Plan:
    """Artifacts that the server itself hands out."""
    client, headers, base, allow = asked
    root = urlsplit(place).path.strip("/")
    url = f"{base}/api/2.0/mlflow-artifacts/artifacts"
    if options.digests or options.manifest is not None:
        return resolve_at(model, options, f"{url}/{quote(root)}", allow, headers)
    check_pinned(model, options, options.url, "give 'digest' for each file: the registry keeps none")
    files: list[RemoteFile] = []
    folders = deque([root])
    for _ in range(_FOLDERS):
        if not folders or len(files) > model.limits.download_files:
            break
        check_cancelled(model, options.url)
        folder = folders.popleft()
        answer = _ask(client, headers, url, {"path": folder})
        for entry in items(field(document(answer, "the listing"), "files", "the listing"), "the listing"):
            last = text(entry, "path", "the listing").rpartition("/")[2]
            path = f"{folder}/{last}"
            if field(entry, "is_dir", "the listing") is True:
                folders.append(path)
            elif chosen(path.removeprefix(f"{root}/"), options.include):
                size = number(entry, "file_size", "the listing") if "file_size" in entry else None
                files.append(RemoteFile(path.removeprefix(f"{root}/"), f"{url}/{quote(path)}", size))
    return with_headers(Plan(options.url, tuple(files), allow=allow), headers)


def _ask(client: WebClient, headers: Headers | None, url: str, query: dict[str, str]) -> WebAnswer:
    return client.fetch(f"{url}?{urlencode(query)}", headers=headers(False) if headers else {}, limit=16 << 20)


def server(model: AgentModel, options: Options) -> str:
    """The registry's URL, which the operator named.

    Raises:
        InvalidArgumentError: no operator did, or it is not a URL.
    """
    given = options.tracking if options.tracking and model.demanded else ""
    if options.tracking and not model.demanded:
        raise InvalidArgumentError(f"parameter 'tracking' is the operator's: give it in the policy, or set {_VARIABLE}")
    base = (given or os.environ.get(_VARIABLE, "")).rstrip("/")
    split = urlsplit(base)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise InvalidArgumentError(f"the place of the MLflow registry is not known: set {_VARIABLE} to its http(s) URL")
    return base
