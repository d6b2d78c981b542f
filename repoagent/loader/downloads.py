"""Files that an agent asks for, brought through the cache."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from repoagent.api.downloads import RemoteFile
from repoagent.errors import InvalidArgumentError, NotFoundError, UnavailableError, storage_faults
from repoagent.storage.cache.blob_store import OFFLINE_VARIABLE
from repoagent.storage.cache.cache import CacheScope
from repoagent.storage.repositories.filesystems import TIMEOUT, open_patiently
from repoagent.storage.repositories.listing import FileEntry, list_files, single_file
from repoagent.storage.repositories.url import RepositoryUrl, parse_url, with_credentials
from repoagent.storage.transfer import streams as transfer
from repoagent.storage.transfer.localize import bring_privately
from repoagent.storage.transfer.streams import check_digest, fsspec_opener, web_opener, web_status
from repoagent.web import HOSTS_VARIABLE, Hosts, WebClient, origin_of

_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https"})
_ENDPOINTS: Final = ("endpoint_url", "endpoint")


def is_offline() -> bool:
    """Whether the operator allows no downloads."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


_Access = tuple[Mapping[str, Any], Sequence[str]]
"""Options of a store's filesystem, and hosts that need not be public."""


@dataclass(frozen=True, slots=True)
class Downloads:
    """The downloads of one load.

    ``cache`` is None where nothing may be kept; ``most`` is the largest file and ``count`` the most files that are
    taken; ``filesystems`` are those of plug-ins.
    """

    cache: CacheScope | None
    filesystems: Mapping[str, str]
    most: int
    count: int
    progress: Callable[[int, int], None]
    cancelled: Callable[[], bool]
    timeout: float = TIMEOUT

    def client(self, allow: Sequence[str] = ()) -> WebClient:
        offline = f"the server is offline ({OFFLINE_VARIABLE})" if is_offline() else ""
        return WebClient(_hosts(allow), timeout=self.timeout, offline=offline)

    def listing(
        self, url: str, include: Sequence[str], options: Mapping[str, Any], allow: Sequence[str]
    ) -> list[RemoteFile]:
        if is_offline():
            raise UnavailableError(f"{_shown(url)} cannot be listed: the server is offline ({OFFLINE_VARIABLE})")
        if url.startswith(("http://", "https://")) and not url.endswith("/"):
            with storage_faults("read", _shown(url)):
                size, tag = web_status(self.client(allow), url)
            name = unquote(urlsplit(url).path.rpartition("/")[2])
            return [RemoteFile(name, url, size, tag=tag)]
        place, fs = self._filesystem(url, options, allow)
        with storage_faults("list", place.text):
            is_web = place.protocol in ("http", "https")  # and then it is a directory, see above
            single = None if is_web else single_file(fs, place.path)
            entries = list_files(fs, place.path) if single is None else [single]
        chosen = [one for one in entries if not include or any(fnmatchcase(one.path, each) for each in include)]
        if not chosen:
            raise NotFoundError(f"{place.text} has no file{' of those that are included' if include else ''}")
        self._check_count(len(chosen), place.text)
        return [
            RemoteFile(entry.path, _url_of(place, entry, single is not None), entry.size, tag=entry.tag)
            for entry in chosen
        ]

    def download(
        self, files: Sequence[RemoteFile], into: Path, options: Mapping[str, Any], allow: Sequence[str]
    ) -> tuple[dict[str, str], set[str]]:
        """The digests of the files by path, and which of them were downloaded now: others came from the cache."""
        self._check_count(len(files), "the download")
        client = self.client(allow)
        opened: dict[str, Any] = {}
        wanted = [self._openable(file, client, (options, allow), opened) for file in files]
        fresh: set[str] = set()
        if self.cache is not None:
            brought = self.cache.download(
                wanted,
                into,
                progress=self.progress,
                cancelled=self.cancelled,
                most=self.most,
                offline=is_offline(),
                fresh=fresh.add,
            )
        elif is_offline():
            raise UnavailableError(f"nothing can be downloaded: the server is offline ({OFFLINE_VARIABLE})")
        else:
            brought = bring_privately(wanted, into, progress=self.progress, cancelled=self.cancelled, most=self.most)
            fresh = set(brought)
        return {path: f"sha256:{digest}" for path, (digest, _) in brought.items()}, fresh

    def _openable(
        self,
        file: RemoteFile,
        client: WebClient,
        access: tuple[Mapping[str, Any], Sequence[str]],
        opened: dict[str, Any],
    ) -> transfer.RemoteFile:
        """The file with a way to read it."""
        if file.digest:
            check_digest(file.digest, f"the digest of {file.path!r}")
        scheme = file.url.partition(":")[0].lower()
        if scheme in ("http", "https"):
            origin_of(file.url)
            opener = web_opener(client, file.url, file.headers or (lambda _again: {}))
        else:
            base, _, _ = file.url.rpartition("/")
            if base not in opened:
                opened[base] = self._filesystem(base, *access)[1]
            opener = fsspec_opener(opened[base], parse_url(file.url).path, file.size)
        shown = _shown(file.url)
        key = shown if file.tag and "?" not in file.url else ""
        return transfer.RemoteFile(file.path, shown, opener, file.size, file.tag, file.digest, key)

    def _filesystem(self, url: str, options: Mapping[str, Any], allow: Sequence[str]) -> tuple[RepositoryUrl, Any]:
        place = with_credentials(parse_url(url))
        if place.protocol not in _STORES and place.protocol not in self.filesystems:
            raise InvalidArgumentError(
                f"{_shown(url)} is not a place to download from; expected one of s3, gs, az, as, http, https"
            )
        place = replace(place, options={**place.options, **options})
        hosts = _hosts(allow)
        for endpoint in [place.options.get(name) for name in _ENDPOINTS]:
            if endpoint:
                hosts.addresses(origin_of(str(endpoint)))
        if place.protocol in ("http", "https"):
            hosts.addresses(origin_of(place.path))
        own: dict[str, Any] = {"skip_instance_cache": True}
        if place.protocol in ("http", "https"):
            own["allow_redirects"] = False  # Its listings would follow one to anywhere.
        fs, _ = open_patiently(place, own, self.filesystems, self.timeout)
        return place, fs

    def _check_count(self, count: int, what: str) -> None:
        if count > self.count:
            raise InvalidArgumentError(f"{what} has {count} files; the limit is {self.count} (--limit-download-files)")


def _hosts(allow: Sequence[str]) -> Hosts:
    return Hosts([*os.environ.get(HOSTS_VARIABLE, "").split(","), *allow])


def with_digests(files: Sequence[RemoteFile], digests: Mapping[str, str]) -> list[RemoteFile]:
    """``files``, each with its digest; raises ``NotFoundError`` if a digest is of another file."""
    missing = sorted(digests.keys() - {file.path for file in files})
    if missing:
        raise NotFoundError(f"there is no file {missing[0]!r}, for which a digest is given")
    return [replace(file, digest=digests[file.path]) if file.path in digests else file for file in files]


def check_same(url: str, before: Sequence[RemoteFile], after: Sequence[RemoteFile]) -> None:
    """Raise ``UnavailableError`` if the listings differ."""
    changed = sorted({file.path for file in set(before) ^ set(after)})
    if changed:
        raise UnavailableError(f"{_shown(url)} changed while it was copied ({', '.join(changed[:3])}); load it again")


def _url_of(place: RepositoryUrl, entry: FileEntry, single: bool) -> str:
    if place.protocol in ("http", "https"):
        return entry.name
    return place.text if single else f"{place.text.rstrip('/')}/{entry.path}"


def _shown(url: str) -> str:
    split = urlsplit(url.partition("?")[0])
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}" if split.netloc else split.geturl()
