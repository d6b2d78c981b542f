"""``oci://HOST/NAME@sha256:DIGEST``: a model in a container registry.

ModelPack, KitOps, images of models (modelcar), and plain layers with titles, as ``oras push`` makes them. fsspec's own
``oci`` is Oracle's object storage; this agent never passes such a URL on to it.
"""

import base64
import hashlib
import platform
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from repoagent.api import (
    AgentModel,
    InvalidArgumentError,
    NotFoundError,
    RemoteFile,
    UnavailableError,
    UnsupportedError,
    WebAnswer,
    WebClient,
    read_token,
)
from repoagent_fetch.fetch_options import Options
from repoagent_fetch.pins import has_digests, with_given_digests
from repoagent_fetch.plan import Archive, Plan, check_pinned, looked_at, with_headers
from repoagent_fetch.server_answers import document, field, items, number, text
from repoagent_fetch.stores import allowed

_PART: Final = re.compile(r'(?<![a-zA-Z_])([a-zA-Z_]+)="([^"]*)"')


class Login:
    """What a registry wants to see with requests, found out when it refuses one. Thread-safe."""

    def __init__(self, model: AgentModel, options: Options, client: WebClient, reference: "Reference") -> None:
        """Ask nothing yet. Secrets are looked up when they are needed, and again when they are refused."""
        self._model = model
        self._options = options
        self._client = client
        self._reference = reference
        self._own = reference.base.partition("/v2/")[0]
        self._lock = threading.Lock()
        self._header = ""

    def headers(self, again: bool) -> Mapping[str, str]:
        """For requests of blobs; ``again`` after a refusal."""
        with self._lock:
            if again or not self._header:
                self._renew()
            return self._known()

    def fetch(self, url: str, *, accept: str, limit: int) -> WebAnswer:
        """A small answer, asked for again with credentials if the registry wants them."""
        answer = self._client.fetch(url, headers={"Accept": accept, **self._known()}, limit=limit)
        if answer.status != 401:
            return answer
        with self._lock:
            self._accept(answer)
        return self._client.fetch(url, headers={"Accept": accept, **self._known()}, limit=limit)

    def _known(self) -> Mapping[str, str]:
        return {"Authorization": self._header} if self._header else {}

    def _renew(self) -> None:
        answer = self._client.fetch(f"{self._reference.base}/tags/list?n=1", limit=1 << 20)
        if answer.status == 401:
            self._accept(answer)

    def _accept(self, refusal: WebAnswer) -> None:
        """Do what the refusal asks for: that of the registry itself, not of where it redirected to."""
        if not refusal.url.startswith(f"{self._own}/"):
            raise UnavailableError(
                f"the registry {self._reference.host} redirects to a server that wants a login of its own, which is "
                "not supported"
            )
        scheme, _, rest = refusal.headers.get("www-authenticate", "").partition(" ")
        if scheme.lower() == "basic":
            self._header = self._basic()
        elif scheme.lower() == "bearer":
            self._header = f"Bearer {self._token(dict(_PART.findall(rest)))}"
        else:
            raise UnavailableError(f"the registry {self._reference.host} wants a way to log in that is not supported")

    def _basic(self) -> str:
        if not self._options.username or not self._options.password:
            raise UnavailableError(
                f"the registry {self._reference.host} wants a name and a password: give 'username' and 'password'"
            )
        pair = b":".join(self._model.key(one).strip() for one in (self._options.username, self._options.password))
        return f"Basic {base64.b64encode(pair).decode()}"

    def _token(self, parts: Mapping[str, str]) -> str:
        realm = parts.get("realm", "")
        if not realm.startswith(("https://", f"{self._own}/")):
            raise InvalidArgumentError(
                f"the registry {self._reference.host} sends to {realm[:100]!r} for a token, which is not https"
            )
        if self._options.token:
            return read_token(self._model.key, self._options.token)
        query = {name: parts[name] for name in ("service", "scope") if name in parts}
        query.setdefault("scope", f"repository:{self._reference.name}:pull")
        sent = {"Authorization": self._basic()} if self._options.username else {}
        between = "&" if "?" in realm else "?"
        answer = self._client.fetch(f"{realm}{between}{urlencode(query)}", headers=sent)
        given = document(answer, f"the token of the registry {self._reference.host}")
        token = (given.get("token") or given.get("access_token")) if isinstance(given, dict) else None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InvalidArgumentError(f"the registry {self._reference.host} gave no valid token")
        return token


_PATHS: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
"""Annotations with the path of a file, of ModelPack and of plain layers."""
_UNPACK: Final = "io.deis.oras.content.unpack"
_IMAGES: Final = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_MODELS: Final = "models"
"""Where an image of a model (modelcar) has it."""


def layer(descriptor: Mapping[str, Any], config: str, blob: RemoteFile) -> RemoteFile | Archive:
    """The layer of ``descriptor`` in a manifest whose configuration has the type ``config``.

    Raises:
        UnsupportedError: a compression that cannot be read here.
        InvalidArgumentError: a file without a name.
    """
    kind = text(descriptor, "mediaType", "a layer").lower()
    annotations = descriptor.get("annotations")
    named = annotations if isinstance(annotations, dict) else {}
    path = next((named[name] for name in _PATHS if isinstance(named.get(name), str)), "")
    if config in _IMAGES and kind.endswith((".tar", ".tar.gzip", ".tar+gzip", ".tar+zstd", ".tar.zstd")):
        return Archive(blob, _compression(kind), below=_MODELS)
    if named.get(_UNPACK) == "true":
        return Archive(blob, "gzip")
    if (".kitops." in kind or ".cncf.model." in kind) and "tar" in kind:
        return Archive(blob, _compression(kind))
    if kind.endswith(("+gzip", "+zstd")):
        raise UnsupportedError(f"a layer has the type {kind[:100]!r}: a compressed file that is not an archive")
    if not path:
        raise InvalidArgumentError(f"a layer of the type {kind[:100]!r} has no title, so its file has no name")
    return replace(blob, path=path)


def _compression(kind: str) -> str:
    if kind.endswith("zstd"):
        raise UnsupportedError("a layer is compressed with zstd, which is not supported; push it as tar or tar+gzip")
    return "gzip" if kind.endswith("gzip") else ""


_URL: Final = re.compile(
    r"oci://(?P<host>[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](?::[0-9]{1,5})?)/"
    r"(?P<name>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?"
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LARGEST: Final = 4 << 20
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?")
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A model in a registry; ``tag`` and ``digest`` may be empty."""

    host: str
    name: str
    tag: str
    digest: str

    @property
    def base(self) -> str:
        """The URL of everything of this name. Registries on loopback speak plain HTTP, as other clients assume, too."""
        scheme = "http" if _LOOPBACK.fullmatch(self.host) else "https"
        host = "registry-1.docker.io" if self.host == "docker.io" else self.host
        return f"{scheme}://{host}/v2/{self.name}"


def parse(url: str) -> Reference:
    """Read an ``oci://`` URL.

    Raises:
        InvalidArgumentError: it is not one.
    """
    match = _URL.fullmatch(url)
    if match is None:
        hint = " (Oracle's object storage is another thing)" if "@" in url and "@sha" not in url else ""
        raise InvalidArgumentError(
            f"{url[:200]!r} is not a model in a container registry; expected oci://HOST/NAME@sha256:DIGEST{hint}"
        )
    name = match["name"]
    if match["host"] == "docker.io" and "/" not in name:
        name = f"library/{name}"
    return Reference(match["host"], name, match["tag"] or "", match["digest"] or "")


def is_pinned(options: Options) -> bool:
    """Whether the URL has a digest."""
    return bool(parse(options.url).digest)


def login(model: AgentModel, options: Options) -> Login:
    """The credentials for the registry, and what it gives for them."""
    reference = parse(options.url)
    client = model.web(allow=allowed(model, f"{reference.base}/"))
    return Login(model, options, client, reference)


def resolve(model: AgentModel, options: Options) -> Plan:
    """The layers of the model."""
    reference = parse(options.url)
    allow = allowed(model, f"{reference.base}/")
    access = login(model, options)
    wanted = reference.digest or reference.tag or "latest"
    if not reference.digest and not has_digests(options):
        check_pinned(
            model, options, f"the tag '{wanted}' of {reference.name}", "give a digest: oci://HOST/NAME@sha256:..."
        )
    manifest, digest = _manifest(access, reference, wanted)
    if field(manifest, "layers", "the manifest") == []:
        raise NotFoundError(f"{options.url} has no layers")
    files: list[RemoteFile] = []
    archives: list[Archive] = []
    config = manifest.get("config")
    kind = config.get("mediaType", "") if isinstance(config, dict) else ""
    for one in items(manifest["layers"], "the layers of the manifest"):
        found = layer(one, str(kind), _blob(reference, one))
        if isinstance(found, Archive):
            archives.append(found)
        elif looked_at(found.path, options):
            files.append(found)
    plan = Plan(
        f"oci://{reference.host}/{reference.name}@{digest}",
        tuple(files),
        tuple(archives),
        pinned=bool(reference.digest),
        allow=allow,
        revision=digest,
    )
    return with_given_digests(model, options, with_headers(plan, access.headers))


def _manifest(access: Login, reference: Reference, wanted: str, *, deeper: bool = True) -> tuple[dict[str, Any], str]:
    """The manifest and its digest; of an index, the one for this machine."""
    what = f"the manifest {wanted[:80]} of {reference.name}"
    accept = ", ".join((*_MANIFESTS, *_INDEXES) if deeper else _MANIFESTS)
    answer = access.fetch(f"{reference.base}/manifests/{wanted}", accept=accept, limit=_LARGEST)
    manifest = document(answer, what)
    digest = _checked(answer.body, wanted, what)
    kind = text(manifest, "mediaType", what) if "mediaType" in manifest else answer.headers.get("content-type", "")
    kind = kind.partition(";")[0].strip()
    if kind in _INDEXES and deeper:
        return _manifest(access, reference, _for_this_machine(manifest, what), deeper=False)
    if kind not in _MANIFESTS:
        raise UnsupportedError(f"{what} has the type {kind[:80]!r}, which is not a manifest of an image or an artifact")
    return manifest, digest


def _checked(body: bytes, wanted: str, what: str) -> str:
    algorithm, _, expected = wanted.partition(":")
    if not expected:
        return f"sha256:{hashlib.sha256(body).hexdigest()}"
    found = hashlib.new(algorithm, body).hexdigest()
    if found != expected:
        raise InvalidArgumentError(f"{what} has the digest {algorithm}:{found}: the registry sent something else")
    return wanted


def _for_this_machine(index: object, what: str) -> str:
    manifests = items(field(index, "manifests", what), what)
    machine = _MACHINES.get(platform.machine(), platform.machine())
    for one in manifests:
        place = one.get("platform") if isinstance(one, dict) else None
        if len(manifests) == 1 or not isinstance(place, dict) or place.get("architecture") == machine:
            digest = text(one, "digest", what)
            if re.fullmatch(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", digest):
                return digest
            raise InvalidArgumentError(f"{what}: {digest[:80]!r} is not a valid digest")
    raise NotFoundError(f"{what} has nothing for {machine}")


def _blob(reference: Reference, descriptor: object) -> RemoteFile:
    what = f"a layer of {reference.name}"
    digest = text(descriptor, "digest", what)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", digest):
        raise InvalidArgumentError(f"{what}: {digest[:80]!r} is not a valid digest")
    return RemoteFile(digest, f"{reference.base}/blobs/{digest}", number(descriptor, "size", what), digest)
