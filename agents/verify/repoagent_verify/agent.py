"""The agent: refuses a model that is not what a trusted signer signed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from repoagent.api import (
    Agent,
    AgentModel,
    ArtifactType,
    InvalidArgumentError,
    NotFoundError,
    Parameters,
    new_hasher,
    read_beneath,
    read_key,
)
from repoagent_verify.bundle import LARGEST_SIGNATURE
from repoagent_verify.keyless import check_root
from repoagent_verify.manifest import VerificationError
from repoagent_verify.signatures import Signer
from repoagent_verify.trust_roots import Trust, read_trust
from repoagent_verify.verification import Coverage, Verified, verify
from repoagent_verify.verify_options import Options, few, parse_parameters


def weaknesses(options: Options, *, certificates: bool) -> Iterator[str]:
    """One sentence for each way round a check of ``options``; nothing if it covers every file of the model.

    ``certificates``: the parameters name certificates to trust.
    """
    yield from _directory(options.directory)
    yield from _files(options)
    yield from _signers(options, certificates)


def _directory(directory: str) -> Iterator[str]:
    if directory == ".":
        return
    also = "" if directory == "*" else ", and add a version directory that is served instead"
    yield (
        f'directory = "{directory}" leaves the rest of the model unsigned: its owner can rewrite config.pbtxt{also}; '
        "leave 'directory' out and sign the whole model"
    )


def _files(options: Options) -> Iterator[str]:
    if options.anything:
        yield 'unsigned = "*" lets the model\'s owner add any file, such as a new version directory; leave it out'
    for path in options.unsigned:
        yield f"the model's owner can write anything to '{path}', which need not be signed; leave it out of 'unsigned'"
    if options.strict is False:
        yield "strict = false accepts files that the signer, or the specification, left unsigned; leave it out"


def _signers(options: Options, certificates: bool) -> Iterator[str]:
    if options.identity is not None and options.identity.endswith("*"):
        yield (
            f'identity = "{options.identity}" accepts what that workflow signs on any such branch or tag; '
            "protect them, or name one"
        )
    if options.at is not None:
        yield (
            f"at = {options.at.isoformat()} accepts certificates that have expired since, also with a stolen key; let "
            "the signer sign again, and leave it out"
        )
    if certificates and options.subject is None:
        yield (
            "every certificate for signing code that leads to the trusted one is accepted; name the signer with "
            "'subject'"
        )


_VERIFIER: Final = "repoagent-verify"


def evidence(part: str, verified: Verified | None) -> dict[str, str]:
    """One record of the load report.

    Args:
        part: The directory that was signed by itself; empty: the whole model.
        verified: What holds; None: the model is refused, and the report has the reason beside the record.
    """
    record = {"verifier": _VERIFIER, "version": _version(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
    if part:
        record["part"] = part
    if verified is None:
        return {**record, "result": "refused"}
    signer = verified.signer
    return {
        **record,
        "result": "verified",
        "digest": f"sha256:{verified.manifest.root_digest}",
        "signer": signer.name,
        "method": signer.method,
        "trust_root": f"sha256:{signer.trust_root}",
    }


@cache
def _version() -> str:
    try:
        return version(_VERIFIER)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


class VerifyAgent(Agent):
    """Verifies OpenSSF Model Signing bundles at LOAD and does nothing else. Its README has the parameters."""

    api_version = 1
    guard = True
    compares_digests = True
    judges_digests = True

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still change if the operator demanded the agent with ``parameters``."""
        return list(weaknesses(parse_parameters(parameters), certificates=bool(parameters.get_all("certificate"))))

    def load(self, model: AgentModel) -> None:
        """Verify the files at ``model.location``, and raise unless a trusted signer signed all of them."""
        options = parse_parameters(model.parameters)
        trust = _trust(model, options)
        try:
            root = model.isolate() if options.directory == "*" else model.localize()
            verified = _verified(model, root, options, trust, isolated=options.directory == "*")
        except _RangesError:
            root = model.isolate()
            verified = _verified(model, root, options, trust, isolated=True)
        if model.artifact_type is not ArtifactType.FILESYSTEM:
            # What was judged is this copy, so this copy is what goes on.
            model.update_location(root)
        _report(model, verified)


class _RangesError(Exception):
    """The signature covers ranges of files, which only a file that stays as it is has."""


def _verified(
    model: AgentModel, root: Path, options: Options, trust: Trust, *, isolated: bool
) -> list[tuple[str, Verified]]:
    directories = _directories(root, options)
    return [(name, _verify(model, root / name, options, trust, isolated=isolated)) for name in directories]


def _refuse_ranges() -> None:
    raise _RangesError


def _trust(model: AgentModel, options: Options) -> Trust:
    files = [(f"trust root '{name}'", _root_file(model, name)) for name in options.trust_roots]
    files += [(name, read_key(model.key, name, partial(_checked, name))) for name in options.references]
    trust = read_trust(files)
    check_root(trust, options.identity)
    return replace(trust, subject=options.subject, at=options.at, identity=options.identity, issuer=options.issuer)


def _checked(reference: str, secret: bytes) -> bytes:
    """A secret that holds what can be trusted."""
    read_trust([(reference, secret)])
    return secret


def _root_file(model: AgentModel, name: str) -> bytes:
    path = model.trust_roots.get(name)
    if path is None:
        raise InvalidArgumentError(
            f"the operator's policy has no trust root '{name}' for this model; it has: {few(model.trust_roots)}"
        )
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotFoundError(f"trust root '{name}' cannot be read: {error.strerror}") from None


def _directories(root: Path, options: Options) -> list[str]:
    """The directories that are signed, each by itself, below ``root``."""
    if options.directory != "*":
        return [options.directory]
    with_versions = sorted(entry.name for entry in root.iterdir() if entry.name.isdecimal() and entry.is_dir())
    if not with_versions:
        raise VerificationError("the model has no version directory (1, 2, ...), so there is nothing to verify")
    return with_versions


def _verify(model: AgentModel, root: Path, options: Options, trust: Trust, *, isolated: bool) -> Verified:
    strict = model.demanded if options.strict is None else options.strict
    coverage = Coverage(options.signature, options.unsigned, strict, options.anything)
    part = "" if options.directory == "." else root.name
    try:
        bundle = _read_signature(root, options.signature)
        verified = verify(
            root,
            bundle,
            trust,
            coverage,
            cancelled=lambda: model.cancelled,
            progress=lambda done, total: model.progress(done, total),
            whole=partial(_digests, model, root, options.signature, bundle),
            before_ranges=None if isolated else _refuse_ranges,
        )
    except VerificationError as error:
        model.report(evidence=evidence(part, None))
        raise VerificationError(f"{part}: {error}" if part else str(error)) from None
    model.report(evidence=evidence(part, verified))
    return verified


def _digests(
    model: AgentModel,
    root: Path,
    signature: str,
    bundle: bytes,
    files: Mapping[str, Sequence[str]],
    *,
    follow: bool,
) -> Mapping[str, Mapping[str, str]]:
    """Those of ``files``, and a look at the ``signature``: a receipt names it as it was read with them."""
    below = root.relative_to(model.localize())
    algorithms = next(iter(files.values()), ("sha256",))
    asked = {signature: algorithms, **files}
    found = model.digests({(below / path).as_posix(): names for path, names in asked.items()}, follow=follow)
    for name, digest in found[(below / signature).as_posix()].items():
        hasher = new_hasher(name)
        hasher.update(bundle)
        if hasher.hexdigest() != digest:
            raise VerificationError(f"{signature} changed while the model was verified; load it again")
    return {path: found[(below / path).as_posix()] for path in files}


def _report(model: AgentModel, verified: list[tuple[str, Verified]]) -> None:
    digests = {}
    for name, result in verified:
        key = "model" if name == "." else name
        digests[key] = f"sha256:{result.manifest.root_digest}"
    files: dict[Signer, int] = {}  # Several directories may have several signers.
    for _, result in verified:
        files[result.signer] = files.get(result.signer, 0) + result.files
    notes = []
    for signer, count in files.items():
        notes += [f"{count} files signed by {signer.name}", f"method {signer.method}"]
        notes.append(f"trust root {signer.trust_root[:16]}")
    notes += list(_unsigned(verified))
    if not model.demanded:
        notes.append("not demanded by a policy: the model itself names this agent, and can name another key")
    model.report(
        bytes_read=sum(
            result.bytes_read for _, result in verified if not all(one.whole for one in result.manifest.resources)
        ),
        digests=digests,
        note="; ".join(notes),
    )
    for name in dict.fromkeys(signer.name for signer in files):
        model.report(signer=name)


def _unsigned(verified: list[tuple[str, Verified]]) -> Iterator[str]:
    count = sum(len(result.unsigned) for _, result in verified)
    if count:
        yield f"{count} files not signed"


def _read_signature(root: Path, path: str) -> bytes:
    """The bundle at ``path`` below ``root``.

    Raises:
        VerificationError: there is none, it is not a regular file, a link is in the way, or it is too large.
    """
    try:
        return read_beneath(root, path, limit=LARGEST_SIGNATURE, follow=False)
    except FileNotFoundError:
        raise VerificationError(f"the model is not signed: there is no {path}") from None
    except OSError as error:
        raise VerificationError(f"the signature {path} cannot be read: {error.strerror}") from None
    except InvalidArgumentError as error:  # UnsafePathError is one
        raise VerificationError(f"the signature cannot be read: {error}") from None
