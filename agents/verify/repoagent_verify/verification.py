"""Verify a model directory against a bundle: the signature, then every file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repoagent_verify.bundle import read_bundle
from repoagent_verify.manifest import DEFAULT_IGNORED, Manifest, Resource, VerificationError
from repoagent_verify.signatures import Signer, verify_signature
from repoagent_verify.statement import read_statement
from repoagent_verify.tree import File, Ignored, Progress, WholeFiles, digests_of, list_files
from repoagent_verify.trust_roots import Trust

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which files may lie in the model without being signed, besides the signature itself.

    ``strict``: neither what the specification ignores nor what the signer ignored; only ``unsigned``.
    ``anything``: every file that is not signed may.
    """

    signature: str
    """The path of the bundle below the model's root, or empty if it lies elsewhere."""
    unsigned: tuple[str, ...] = ()
    strict: bool = False
    anything: bool = False

    def ignored(self, manifest: Manifest) -> Ignored:
        """The paths that are passed over for ``manifest``."""
        named = (*self.unsigned, self.signature) if self.signature else self.unsigned
        if self.strict:
            return Ignored(named)
        return Ignored((*DEFAULT_IGNORED, *named, *manifest.serialization.ignore_paths))


@dataclass(frozen=True, slots=True)
class Verified:
    """A model that holds: who signed it, what was signed, how many bytes were read."""

    signer: Signer
    manifest: Manifest
    files: int
    bytes_read: int
    unsigned: tuple[str, ...] = field(default=())
    """Files that no signature covers, where ``Coverage.anything`` lets them be."""


def verify(
    root: Path,
    bundle: bytes,
    trust: Trust,
    coverage: Coverage,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _done, _total: None,
    whole: WholeFiles | None = None,
    before_ranges: Callable[[], object] | None = None,
) -> Verified:
    """Verify the model below ``root``. ``whole`` computes the digests of files, if no range was signed.

    Before ranges are read, ``before_ranges`` is called, and may raise.

    Raises:
        VerificationError: the bundle is not valid, its signature is not trusted, or the files are not those signed.
        CancelledError: ``cancelled()`` became true.
    """
    parsed = read_bundle(bundle)
    signer = verify_signature(parsed, trust)
    manifest = read_statement(parsed.payload)
    how = manifest.serialization
    files = list_files(root, coverage.ignored(manifest), allow_symlinks=how.allow_symlinks)
    unsigned = _compare_names(files, manifest, coverage)
    if before_ranges is not None and not all(each.whole for each in manifest.resources):
        before_ranges()
    digests = digests_of(root, manifest.resources, how, cancelled=cancelled, progress=progress, whole=whole)
    _compare_digests(manifest.resources, digests)
    signed = {resource.path for resource in manifest.resources}
    read = sum(file.size for file in files if file.path in signed)
    return Verified(signer, manifest, len(signed), read, unsigned)


def _compare_names(files: Sequence[File], manifest: Manifest, coverage: Coverage) -> tuple[str, ...]:
    present = {file.path: file.size for file in files}
    ends = _ends(manifest.resources)
    missing = sorted(ends.keys() - present.keys())
    if missing:
        raise VerificationError(f"signed, but missing: {_few(missing)}")
    sharded = manifest.serialization.shard_size is not None and not manifest.serialization.numbered
    longer = sorted(path for path, end in ends.items() if sharded and present[path] > end)
    if longer:
        raise VerificationError(f"longer than signed: {_few(longer)}")
    extra = sorted(present.keys() - ends.keys())
    if sharded and not coverage.strict:
        # No range covers an empty file, so a signature of ranges cannot list it (specification, section 6.3.2).
        extra = [path for path in extra if present[path]]
    if extra and not coverage.anything:
        raise VerificationError(f"not signed: {_few(extra)}")
    return tuple(extra)


def _ends(resources: Sequence[Resource]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for resource in resources:
        ends[resource.path] = max(ends.get(resource.path, 0), resource.end or 0)
    return ends


def _compare_digests(resources: Sequence[Resource], digests: Sequence[bytes]) -> None:
    changed = [item.name for item, found in zip(resources, digests, strict=True) if item.digest != found]
    if changed:
        raise VerificationError(f"changed after signing: {_few(changed)}")


def _few(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
