"""``s3://``, ``gs://``, ``az://``, ``as://``, ``https://``: files in buckets and on web servers."""

import re
from typing import Final
from urllib.parse import quote

from repoagent.api import AgentModel, RemoteFile
from repoagent_fetch.fetch_options import Options
from repoagent_fetch.pins import read_manifest
from repoagent_fetch.plan import Headers, Plan, check_pinned, chosen, headers_of, with_headers

_HOST: Final = re.compile(r"(?:s3://)?(https?)://([^/:@]+|\[[^\]]+\])(?::([0-9]+))?(?:/|$)")
_PLAIN_S3: Final = re.compile(r"s3://([^/:@]+):([0-9]+)/")


def allowed(model: AgentModel, url: str) -> tuple[str, ...]:
    """The host of ``url``, if the operator's policy named it: it need not be public."""
    if not model.demanded:
        return ()
    match = _HOST.match(url)
    if match is not None:
        return (f"{match[2].strip('[]')}:{match[3] or (443 if match[1] == 'https' else 80)}",)
    plain = _PLAIN_S3.match(url)
    return (f"{plain[1]}:{plain[2]}",) if plain else ()


def resolve(model: AgentModel, options: Options) -> Plan:
    """The files at the URL."""
    headers = headers_of(model, options) if options.url.startswith("http") else None
    return resolve_at(model, options, options.url, allowed(model, options.url), headers)


def resolve_at(
    model: AgentModel, options: Options, url: str, allow: tuple[str, ...], headers: Headers | None = None
) -> Plan:
    """The files at ``url``: those for which there are digests, or those of its listing."""
    digests = dict(options.digests)
    if options.manifest is not None:
        path, digest = options.manifest
        listing = RemoteFile(path, _join(url, path), digest=digest, headers=headers)
        digests = {**read_manifest(model, listing, allow), path: digest, **digests}
    if digests:
        files = [RemoteFile(path, _join(url, path), digest=digest) for path, digest in sorted(digests.items())]
        wanted = [file for file in files if chosen(file.path, options.include)]
        only = next(iter(digests.values())) if len(digests) == 1 else ""
        revision = options.manifest[1] if options.manifest is not None else only
        return with_headers(Plan(url, tuple(wanted), pinned=True, allow=allow, revision=revision), headers)
    check_pinned(model, options, url, "give 'digest' for each file, or 'manifest' with the digest of a SHA256SUMS file")
    listed = model.list_remote(url, include=options.include, allow=allow)
    return with_headers(Plan(url, tuple(listed), allow=allow), headers)


def _join(url: str, path: str) -> str:
    if not url.endswith("/") and url.rpartition("/")[2] == path and "/" not in path:
        return url  # the URL of the file itself
    return f"{url.rstrip('/')}/{quote(path) if url.startswith('http') else path}"
