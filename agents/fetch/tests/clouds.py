"""The parts of Google Cloud Storage and of Azure's blobs that downloads use, and who gives tokens, on loopback.

Sources: Google's JSON API and its OAuth 2 for service accounts; Azure's REST interface of blobs. The clients are the
stores' own: gcsfs and google-auth, adlfs and azure-storage-blob.
"""

import base64
import hashlib
import hmac
import json
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.file_server import FileServer, Request

ACCOUNT = "account"
ACCOUNT_KEY = base64.b64encode(b"the key of the account of the test").decode()
_MOMENT = 1_700_000_000


def tag_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def query_of(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last."""
    if not header:
        return None
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1, size) if last else size


class Store(FileServer):
    """Objects in buckets (or containers): ``BUCKET/PATH`` -> content."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.page = 1000
        """The most entries of one answer to a listing."""
        self.refusals = 0
        self.handlers.append(self._answer)

    def _answer(self, request: Request) -> bool:
        raise NotImplementedError

    def _listed(self, bucket: str, query: dict[str, str], marker: str) -> tuple[list[str], list[str], str]:
        """Names, prefixes and the marker of the next page, below ``prefix``."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found = set()
        for path in self.objects:
            name = path.removeprefix(f"{bucket}/")
            if path.startswith(f"{bucket}/") and name.startswith(prefix):
                head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                found.add(f"{prefix}{head}{cut}" if delimiter else name)
        entries = sorted(entry for entry in found if entry > marker)
        page = entries[: self.page]
        names = [entry for entry in page if not (delimiter and entry.endswith(delimiter))]
        return names, [entry for entry in page if entry not in names], page[-1] if len(entries) > len(page) else ""

    def _send(self, request: Request, content: bytes, asked: str | None, headers: dict[str, str]) -> None:
        span = range_of(asked, len(content))
        if span is None:
            request.answer(200, content, headers)
        else:
            start, end = span
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            request.answer(206, content[start:end], headers)


class GoogleStorage(Store):
    """``uses`` is how many requests a token is good for; without ``protected`` everyone may read."""

    def __init__(self) -> None:
        super().__init__()
        self.protected = False
        self.uses = 1 << 30
        self.lifetime = 3600
        self.tokens: dict[str, int] = {}
        """Token -> requests that are left."""
        self.assertions: list[str] = []

    def _answer(self, request: Request) -> bool:
        if self.protected and not self._is_allowed(request):
            self.refusals += 1
            body = {"error": {"code": 401, "message": "Invalid Credentials"}}
            request.answer(401, json.dumps(body).encode(), {"Content-Type": "application/json"})
            return True
        parts = urlsplit(request.path).path.strip("/").split("/")
        if parts[0] == "download":
            self._download(request, parts[4], unquote(parts[6]))
        elif parts[:3] == ["storage", "v1", "b"] and len(parts) == 5:
            self._list(request, parts[3])
        elif parts[:3] == ["storage", "v1", "b"] and len(parts) == 6:
            self._describe(request, parts[3], unquote(parts[5]))
        else:
            request.answer(404, b"{}")
        return True

    def new_token(self) -> str:
        with self.lock:
            token = f"token-{len(self.tokens)}"
            self.tokens[token] = self.uses
        return token

    def _is_allowed(self, request: Request) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        with self.lock:
            left = self.tokens.get(token, 0)
            self.tokens[token] = left - 1
        return left > 0

    def _resource(self, bucket: str, name: str) -> dict[str, Any]:
        content = self.objects[f"{bucket}/{name}"]
        moment = "2026-01-01T00:00:00.000Z"
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "etag": tag_of(content),
            "generation": "1",
            "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
            "contentType": "application/octet-stream",
            "timeCreated": moment,
            "updated": moment,
        }

    def _list(self, request: Request, bucket: str) -> None:
        query = query_of(request)
        names, prefixes, marker = self._listed(bucket, query, query.get("pageToken", ""))
        document: dict[str, Any] = {"kind": "storage#objects", "prefixes": prefixes}
        document["items"] = [self._resource(bucket, name) for name in names]
        if marker:
            document["nextPageToken"] = marker
        request.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _describe(self, request: Request, bucket: str, name: str) -> None:
        if f"{bucket}/{name}" not in self.objects:
            request.answer(404, b'{"error": {"code": 404, "message": "No such object"}}')
        else:
            body = json.dumps(self._resource(bucket, name)).encode()
            request.answer(200, body, {"Content-Type": "application/json"})

    def _download(self, request: Request, bucket: str, name: str) -> None:
        content = self.objects.get(f"{bucket}/{name}")
        if content is None:
            request.answer(404, b"No such object")
        else:
            self._send(request, content, request.headers.get("Range"), {"ETag": tag_of(content)})


class AzureBlobs(Store):
    """Blobs of one account, for requests that are signed with its key."""

    @property
    def connection(self) -> str:
        """What ``AZURE_STORAGE_CONNECTION_STRING`` has to be."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint={self.url}/{ACCOUNT};"
        )

    def _answer(self, request: Request) -> bool:
        if not _is_signed(request):
            self.refusals += 1
            request.answer(403, headers={"x-ms-error-code": "AuthenticationFailed"})
            return True
        return self._serve(request)

    def _serve(self, request: Request) -> bool:
        """Answer a request that is allowed. The account is in the path, or in the name of the host."""
        query = query_of(request)
        container, _, name = (
            unquote(urlsplit(request.path).path).removeprefix(f"/{ACCOUNT}/").lstrip("/").partition("/")
        )
        if query.get("comp") == "list":
            self._list(request, container, query)
        elif f"{container}/{name}" not in self.objects:
            request.answer(404, headers={"x-ms-error-code": "BlobNotFound" if name else "ContainerNotFound"})
        else:
            content = self.objects[f"{container}/{name}"]
            moment = formatdate(_MOMENT, usegmt=True)
            headers = {
                "ETag": f'"0x{tag_of(content)}"',
                "Last-Modified": moment,
                "x-ms-creation-time": moment,
                "x-ms-blob-type": "BlockBlob",
                "Content-Type": "application/octet-stream",
                "x-ms-version": request.headers.get("x-ms-version", ""),
            }
            asked = request.headers.get("x-ms-range") or request.headers.get("Range")
            self._send(request, content, None if request.command == "HEAD" else asked, headers)
        return True

    def _list(self, request: Request, container: str, query: dict[str, str]) -> None:
        names, prefixes, marker = self._listed(container, query, query.get("marker", ""))
        moment = formatdate(_MOMENT, usegmt=True)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Creation-Time>{moment}</Creation-Time>"
            f"<Last-Modified>{moment}</Last-Modified><Etag>0x{tag_of(self.objects[f'{container}/{name}'])}</Etag>"
            f"<Content-Length>{len(self.objects[f'{container}/{name}'])}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        )
        blobs += "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in prefixes)
        body = (
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="{self.url}/{ACCOUNT}/" '
            f'ContainerName="{container}"><Prefix>{escape(query.get("prefix", ""))}</Prefix><Blobs>{blobs}</Blobs>'
            f"<NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"
        )
        request.answer(200, body.encode(), {"Content-Type": "application/xml"})


def _is_signed(request: Request) -> bool:
    """Whether the request has the signature of the account's key ("Shared Key" of Azure's documentation)."""
    names = "Content-Encoding Content-Language Content-Length Content-MD5 Content-Type Date If-Modified-Since If-Match "
    names += "If-None-Match If-Unmodified-Since Range"
    values = [request.headers.get(name, "") for name in names.split()]
    values[2] = "" if values[2] == "0" else values[2]
    own = sorted((name.lower(), value) for name, value in request.headers.items() if name.lower().startswith("x-ms-"))
    split = urlsplit(request.path)
    resource = f"/{ACCOUNT}{split.path}"
    for name, given in sorted(parse_qs(split.query, keep_blank_values=True).items()):
        resource += f"\n{name.lower()}:{','.join(sorted(given))}"
    lines = [request.command, *values, *(f"{name}:{value}" for name, value in own), resource]
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    return request.headers.get("Authorization") == f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"


class GoogleTokens(FileServer):
    """Who gives service accounts a token for a signed assertion."""

    def __init__(self, storage: GoogleStorage) -> None:
        super().__init__()
        self._storage = storage
        self.given = 0
        self.handlers.append(self._token)

    def _token(self, request: Request) -> bool:
        form = parse_qs(request.body().decode())
        self._storage.assertions.append(form["assertion"][0])
        self.given += 1
        answer = {
            "access_token": self._storage.new_token(),
            "expires_in": self._storage.lifetime,
            "token_type": "Bearer",
        }
        request.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
        return True
