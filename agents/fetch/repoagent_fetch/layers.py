"""What a layer of a manifest is: a file, or an archive of files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from repoagent.api import InvalidArgumentError, RemoteFile, UnsupportedError
from repoagent_fetch.plan import Archive
from repoagent_fetch.server_answers import text

__all__ = ["layer"]

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
