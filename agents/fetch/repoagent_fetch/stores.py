"""``s3://``, ``gs://``, ``az://``, ``as://``, ``https://``: files in buckets and on web servers."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from repoagent.api import AgentModel, InvalidArgumentError, RemoteFile, read_small_file
from repoagent_fetch.options import Options, plain_path
from repoagent_fetch.plan import Headers, Plan, check_pinned, chosen, headers_of, with_headers

__all__ = ["allowed", "resolve", "resolve_at"]

_LINE: Final = re.compile(r"\\?([0-9a-f]{64})(?:  | \*)(.+)")
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
        digests = {**_manifest(model, listing, allow), path: digest, **digests}
    if digests:
        files = [RemoteFile(path, _join(url, path), digest=digest) for path, digest in sorted(digests.items())]
        wanted = [file for file in files if chosen(file.path, options.include)]
        return with_headers(Plan(url, tuple(wanted), pinned=True, allow=allow), headers)
    check_pinned(model, options, url, "give 'digest' for each file, or 'manifest' with the digest of a SHA256SUMS file")
    listed = model.list_remote(url, include=options.include, allow=allow)
    return with_headers(Plan(url, tuple(listed), allow=allow), headers)


def _join(url: str, path: str) -> str:
    if not url.endswith("/") and url.rpartition("/")[2] == path and "/" not in path:
        return url  # the URL of the file itself
    return f"{url.rstrip('/')}/{quote(path) if url.startswith('http') else path}"


def _manifest(model: AgentModel, file: RemoteFile, allow: tuple[str, ...]) -> dict[str, str]:
    """What ``sha256sum`` wrote: path -> digest."""
    with tempfile.TemporaryDirectory(dir=model.acquire_location()) as directory:
        model.download([replace(file, path="manifest")], Path(directory), allow=allow)
        content = read_small_file(Path(directory, "manifest"), limit=model.limits.text_file_bytes)
    digests: dict[str, str] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or line.startswith("\\"):
            raise InvalidArgumentError(
                f"line {number} of {file.path} is not one of sha256sum: a digest and a plain path"
            )
        digests[plain_path(match[2].removeprefix("./"), "manifest")] = f"sha256:{match[1]}"
    return digests
