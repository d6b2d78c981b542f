"""Digests that the parameters give, for any source: only these files come, and the digests decide about every byte."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from repoagent.api import AgentModel, InvalidArgumentError, NotFoundError, RemoteFile, read_small_file
from repoagent_fetch.fetch_options import Options, plain_path
from repoagent_fetch.plan import Plan, chosen

_LINE: Final = re.compile(r"\\?([0-9a-f]{64})(?:  | \*)(.+)")


def has_digests(options: Options) -> bool:
    """Whether ``digest`` or ``manifest`` pin the source."""
    return bool(options.digests) or options.manifest is not None


def with_given_digests(model: AgentModel, options: Options, plan: Plan) -> Plan:
    """``plan`` with the files that ``digest`` and ``manifest`` name, or as it is if neither is given.

    Raises:
        NotFoundError: the source has no such file.
        InvalidArgumentError: the source itself gives a file another digest, or has archives.
    """
    if not has_digests(options):
        return plan
    if plan.archives:
        raise InvalidArgumentError(
            f"{plan.source} has its files in archives, which 'digest' and 'manifest' cannot name: "
            "pin it by its own digest"
        )
    known = {file.path: file for file in plan.files}
    digests = dict(options.digests)
    if options.manifest is not None:
        path, digest = options.manifest
        listing = _pinned(_known(known, path, plan), digest, plan)
        digests = {**read_manifest(model, listing, plan.allow), path: digest, **digests}
    files = [
        _pinned(_known(known, path, plan), digest, plan)
        for path, digest in sorted(digests.items())
        if chosen(path, options.include)
    ]
    return replace(plan, files=tuple(files), pinned=True)


def read_manifest(model: AgentModel, file: RemoteFile, allow: tuple[str, ...]) -> dict[str, str]:
    """What ``sha256sum`` wrote into ``file``: path -> digest.

    Raises:
        InvalidArgumentError: a line of another form, or a path that is not a plain one.
    """
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


def _known(known: dict[str, RemoteFile], path: str, plan: Plan) -> RemoteFile:
    if path not in known:
        raise NotFoundError(f"{plan.source} has no file {path[:200]!r}, for which a digest is given")
    return known[path]


def _pinned(file: RemoteFile, digest: str, plan: Plan) -> RemoteFile:
    """``file`` with ``digest``. One of another algorithm at the source is left to that one."""
    if file.digest and file.digest.partition(":")[0] == digest.partition(":")[0] and file.digest != digest:
        raise InvalidArgumentError(
            f"{file.path[:200]} has the digest {file.digest} at {plan.source}; expected {digest[:140]}"
        )
    return replace(file, digest=digest)
