"""``hf://OWNER/NAME@REVISION[/PATH]``: a model of the Hugging Face hub, or of another with its interface.

``HF_ENDPOINT`` names the other hub, as for the hub's own client.
"""

import os
import re
from typing import Final
from urllib.parse import quote, urlsplit

from repoagent.api import AgentModel, InvalidArgumentError, RemoteFile
from repoagent_fetch.fetch_options import Options
from repoagent_fetch.pins import has_digests, with_given_digests
from repoagent_fetch.plan import Plan, check_pinned, headers_of, looked_at, with_headers
from repoagent_fetch.server_answers import check_cancelled, document, field, items, number, text

_URL: Final = re.compile(r"hf://(?:models/)?([\w.-]+/[\w.-]+|[\w.-]+)(?:@([\w.%/-]+?))?(?:/([^@]*))?")
_PINNED: Final = re.compile(r"hf://(?:models/)?([\w.-]+/[\w.-]+)@([0-9a-f]{40})(?:/(.*))?")
_NEXT: Final = re.compile(r'<([^<>]*)>; *rel="?next"?')
_PAGES: Final = 1000
_LARGEST_PAGE: Final = 8 << 20


def is_pinned(options: Options) -> bool:
    """Whether the URL has a commit."""
    return _PINNED.fullmatch(options.url) is not None


def endpoint() -> str:
    """The URL of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def resolve(model: AgentModel, options: Options) -> Plan:
    """The files of the model at its commit."""
    repository, revision, folder = _parts(options.url)
    hub = endpoint()
    allow = (_host(hub),) if "HF_ENDPOINT" in os.environ else ()
    client = model.web(allow=allow)
    headers = headers_of(model, options)
    sent = headers(False) if headers else {}
    what = f"model {repository} of the hub"
    commit = revision
    if not is_pinned(options):
        if not has_digests(options):
            how = "give a commit of 40 digits: hf://NAME@COMMIT"
            check_pinned(model, options, f"revision '{revision}' of {what}", how)
        url = f"{hub}/api/models/{repository}/revision/{quote(revision, safe='')}"
        commit = text(document(client.fetch(url, headers=sent), what), "sha", what)
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise InvalidArgumentError(f"{what}: 'sha' is not a commit")
    files: list[RemoteFile] = []
    page = f"{hub}/api/models/{repository}/tree/{commit}/{quote(folder)}".rstrip("/") + "?recursive=true"
    for _ in range(_PAGES):
        check_cancelled(model, what)
        answer = client.fetch(page, headers=sent, limit=_LARGEST_PAGE)
        files += [
            _file(entry, f"{hub}/{repository}/resolve/{commit}", folder, what)
            for entry in items(document(answer, what), what)
            if field(entry, "type", what) == "file" and _is_wanted(text(entry, "path", what), folder, options)
        ]
        following = _NEXT.search(answer.headers.get("link", ""))
        if following is None or len(files) > model.limits.download_files:
            break
        page = following[1]
        if not page.startswith(f"{hub}/"):
            raise InvalidArgumentError(f"the listing of {what} goes on at another server, which is not asked")
    plan = Plan(f"hf://{repository}@{commit}", tuple(files), pinned=is_pinned(options), allow=allow, revision=commit)
    return with_given_digests(model, options, with_headers(plan, headers))


def _file(entry: object, base: str, folder: str, what: str) -> RemoteFile:
    path = text(entry, "path", what)
    large = entry.get("lfs") if isinstance(entry, dict) else None
    if large is None:
        digest, size = f"git-sha1:{text(entry, 'oid', what)}", number(entry, "size", what)
    else:
        digest, size = f"sha256:{text(large, 'oid', what).removeprefix('sha256:')}", number(large, "size", what)
    return RemoteFile(_below(path, folder), f"{base}/{quote(path)}", size, digest)


def _is_wanted(path: str, folder: str, options: Options) -> bool:
    return path.startswith(f"{folder}/" if folder else "") and looked_at(_below(path, folder), options)


def _below(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/") if folder else path


def _parts(url: str) -> tuple[str, str, str]:
    # With a second "@" there are as many ways to fail as pairs of slashes.
    match = _PINNED.fullmatch(url) or (_URL.fullmatch(url) if url.count("@") < 2 else None)
    if match is None or "/" not in match[1]:
        raise InvalidArgumentError(f"{url[:200]!r} is not a model of the hub; expected hf://OWNER/NAME@COMMIT")
    return match[1], match[2] or "main", (match[3] or "").strip("/")


def _host(hub: str) -> str:
    split = urlsplit(hub)
    return f"{split.hostname}:{split.port or (443 if split.scheme == 'https' else 80)}"
