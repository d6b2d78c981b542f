"""What has to be fetched: files, and archives whose contents are files of the model."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase

from repoagent.api import AgentModel, InvalidArgumentError, NotFoundError, RemoteFile, read_json, read_token
from repoagent_fetch.fetch_options import Options

Headers = Callable[[bool], Mapping[str, str]]
"""Headers of a request; called with True when the server has refused them."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A layer that holds files: ``compression`` is "" or "gzip"; ``below`` is the directory in it that counts."""

    file: RemoteFile
    compression: str = ""
    below: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Paths are those at the source. ``source`` is what was meant, with its commit or digest."""

    source: str
    files: tuple[RemoteFile, ...] = ()
    archives: tuple[Archive, ...] = ()
    pinned: bool = False
    """Whether a commit or a digest that was given decides about every byte."""
    allow: tuple[str, ...] = ()
    """Hosts that need not be public: those that the operator named."""
    revision: str = ""
    """The commit or the digest that decides, if a single one does."""


def check_pinned(model: AgentModel, options: Options, what: str, how: str) -> None:
    """Refuse what may be another model tomorrow, unless the policy allows that.

    Raises:
        InvalidArgumentError: it is refused; ``how`` states what to give.
    """
    if not options.floating:
        raise InvalidArgumentError(f"{what} may change at any time: {how}, or allow it in the policy (floating)")
    if not model.demanded:
        raise InvalidArgumentError(
            f"{what} may change at any time, and only the operator's policy can allow that: {how}"
        )


def chosen(path: str, include: Sequence[str]) -> bool:
    """Whether ``path`` is wanted."""
    return not include or any(fnmatchcase(path, pattern) for pattern in include)


def looked_at(path: str, options: Options) -> bool:
    """Whether ``path`` is wanted, or names the digests of what is."""
    return chosen(path, options.include) or (options.manifest is not None and path == options.manifest[0])


def headers_of(model: AgentModel, options: Options) -> Headers | None:
    """The token, looked up again when it was refused."""
    token = options.token
    if not token:
        return None
    return lambda _again: {"Authorization": f"Bearer {read_token(model.key, token)}"}


def to_text(plan: Plan) -> str:
    """A pinned plan for the cache. It holds no header."""
    bare = with_headers(plan, None)
    return json.dumps(asdict(bare))


def from_text(text: str, headers: Headers | None) -> Plan:
    """A plan from the cache."""
    document = read_json(text)
    files = tuple(RemoteFile(**one) for one in document["files"])
    archives = tuple(Archive(RemoteFile(**one.pop("file")), **one) for one in document["archives"])
    plan = Plan(document["source"], files, archives, document["pinned"], tuple(document["allow"]), document["revision"])
    return with_headers(plan, headers)


def with_headers(plan: Plan, headers: Headers | None, *, below: str = "") -> Plan:
    """``plan`` whose requests have ``headers``: those of URLs that begin with ``below``."""

    def add(file: RemoteFile) -> RemoteFile:
        return replace(file, headers=headers if file.url.startswith(below) else None)

    archives = tuple(replace(one, file=add(one.file)) for one in plan.archives)
    return replace(plan, files=tuple(add(file) for file in plan.files), archives=archives)


def need_files(plan: Plan) -> Plan:
    """``plan`` if there is anything in it.

    Raises:
        NotFoundError: there is nothing.
    """
    if not plan.files and not plan.archives:
        raise NotFoundError(f"{plan.source} has no file of those that are wanted")
    return plan
