"""Servers that speak the protocols of a container registry, the Hugging Face hub and MLflow, on loopback."""

import hashlib
import io
import json
import tarfile
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.file_server import FileServer, Request

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return output.getvalue()


class Registry(FileServer):
    """Pulls of the OCI distribution specification: manifests by tag and digest, blobs with ranges, token login."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, str] = {}
        self.secret = ""
        self.token = 0
        self.uses = 1 << 30
        """How many requests a token is good for."""
        self.handlers.append(self._login)
        self.handlers.append(self._manifest)

    def push_blob(self, name: str, content: bytes) -> dict[str, Any]:
        digest = sha256(content)
        self.files[f"/v2/{name}/blobs/{digest}"] = content
        return {"digest": digest, "size": len(content)}

    def push(
        self, name: str, layers: list[dict[str, Any]], *, tag: str = "v1", config: str = "", kind: str = MANIFEST
    ) -> str:
        """Returns the digest."""
        described = {**self.push_blob(name, b"{}"), "mediaType": config or "application/vnd.oci.empty.v1+json"}
        document = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": layers}
        return self.push_manifest(name, document, tag, kind)

    def push_manifest(self, name: str, document: dict[str, Any], tag: str = "v1", kind: str = MANIFEST) -> str:
        body = json.dumps(document).encode()
        for reference in (tag, sha256(body)):
            self.files[f"/v2/{name}/manifests/{reference}"] = body
            self.types[f"/v2/{name}/manifests/{reference}"] = kind
        return sha256(body)

    def layer(self, name: str, kind: str, content: bytes, **annotations: str) -> dict[str, Any]:
        return {**self.push_blob(name, content), "mediaType": kind, "annotations": annotations}

    def _login(self, request: Request) -> bool:
        if not self.secret:
            return False
        if request.target == "/token":
            import base64

            wanted = f"Basic {base64.b64encode(self.secret.encode()).decode()}"
            query = parse_qs(urlsplit(request.path).query)
            if request.headers.get("Authorization") != wanted or not query["scope"][0].startswith("repository:"):
                request.answer(401, b"{}")
                return True
            with self.lock:
                self.token += 1
                self.left = self.uses
            request.answer(200, json.dumps({"token": f"t{self.token}", "expires_in": 60}).encode())
            return True
        with self.lock:
            good = request.headers.get("Authorization") == f"Bearer t{self.token}" and self.left > 0
            if good:
                self.left -= 1
        if not good:
            challenge = f'Bearer realm="{self.url}/token",service="test",scope="repository:x:pull"'
            request.answer(401, b"{}", {"WWW-Authenticate": challenge})
        return not good

    def _manifest(self, request: Request) -> bool:
        if request.target in self.types:
            body = self.files[request.target]
            headers = {"Content-Type": self.types[request.target], "Docker-Content-Digest": sha256(body)}
            request.answer(200, body, headers)
            return True
        return False


class Hub(FileServer):
    """The part of the Hugging Face hub's interface that downloads use; large files are elsewhere, as there."""

    def __init__(self, *, page: int = 1000) -> None:
        super().__init__()
        self.models: dict[str, dict[str, bytes]] = {}
        """``OWNER/NAME`` -> files."""
        self.commit = "a" * 40
        self.page = page
        self.token = ""
        self.large = FileServer()
        self.handlers.append(self._api)

    def close(self) -> None:
        self.large.close()
        super().close()

    def _api(self, request: Request) -> bool:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            request.answer(401, b"{}")
            return True
        for name, files in self.models.items():
            if request.target.startswith(f"/api/models/{name}/revision/") or request.target == f"/api/models/{name}":
                siblings = [{"rfilename": path} for path in files]
                request.answer(200, json.dumps({"id": name, "sha": self.commit, "siblings": siblings}).encode())
                return True
            if request.target.startswith(f"/api/models/{name}/tree/{self.commit}"):
                self._tree(request, files)
                return True
            for revision in (self.commit, "main"):
                base = f"/{name}/resolve/{revision}/"
                if request.target.startswith(base):
                    self._resolve(request, files, request.target.removeprefix(base))
                    return True
        return False

    def _tree(self, request: Request, files: dict[str, bytes]) -> None:
        query = parse_qs(urlsplit(request.path).query)
        start = int(query.get("cursor", ["0"])[0])
        paths = sorted(files)[start : start + self.page]
        headers = {}
        if start + self.page < len(files):
            where = f"{self.url}{request.target}?recursive=true&cursor={start + self.page}"
            headers["Link"] = f'<{where}>; rel="next"'
        request.answer(200, json.dumps([self._entry(path, files[path]) for path in paths]).encode(), headers)

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "oid": git_sha1(content), "size": len(content), "path": path}
        if path.endswith((".onnx", ".safetensors")):
            lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            return {**entry, "oid": git_sha1(b"pointer"), "lfs": lfs}
        return entry

    def _resolve(self, request: Request, files: dict[str, bytes], path: str) -> None:
        content = files.get(path)
        if content is None:
            request.answer(404)
            return
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{git_sha1(content)}"'}
        if path.endswith((".onnx", ".safetensors")):
            digest = hashlib.sha256(content).hexdigest()
            self.large.files[f"/lfs/{digest}"] = content
            headers["X-Linked-Etag"], headers["X-Linked-Size"] = f'"{digest}"', str(len(content))
            headers["Location"] = f"{self.large.url}/lfs/{digest}?signature=x"
            request.answer(302, b"", headers)
        else:
            request.answer(200, content, headers)


class Tracking(FileServer):
    """MLflow's REST interface of a model registry, with artifacts that it hands out itself."""

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: dict[str, bytes] = {}
        self.place = "mlflow-artifacts:/1/models/m-1/artifacts"
        self.handlers.append(self._api)

    def _api(self, request: Request) -> bool:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        if request.target == "/api/2.0/mlflow/registered-models/alias" and query.get("name") == "fraud":
            self._json(request, {"model_version": {"name": "fraud", "version": "3"}})
        elif request.target == "/api/2.0/mlflow/model-versions/get-download-uri":
            known = (query.get("name"), query.get("version")) == ("fraud", "3")
            self._json(request, {"artifact_uri": self.place} if known else {"error_code": "x"}, 200 if known else 404)
        elif request.target == "/api/2.0/mlflow-artifacts/artifacts":
            self._listing(request, query["path"])
        elif request.target.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
            content = self.artifacts.get(request.target.removeprefix("/api/2.0/mlflow-artifacts/artifacts/"))
            request.answer(404 if content is None else 200, content or b"")
        else:
            return False
        return True

    def _listing(self, request: Request, folder: str) -> None:
        found: dict[str, Any] = {}
        for path, content in self.artifacts.items():
            if path.startswith(f"{folder}/"):
                first, deeper, _ = path.removeprefix(f"{folder}/").partition("/")
                size = {} if deeper else {"file_size": len(content)}
                found[first] = {"path": first, "is_dir": bool(deeper), **size}
        self._json(request, {"files": list(found.values())})

    def _json(self, request: Request, document: object, status: int = 200) -> None:
        request.answer(status, json.dumps(document).encode())
