"""The agent: brings a model from elsewhere, and hands a directory of this machine on."""

import json
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from repoagent.api import (
    Agent,
    AgentModel,
    CancelledError,
    InvalidArgumentError,
    Parameters,
    RemoteFile,
    UnsupportedError,
    digest_files,
    open_beneath,
    walk_beneath,
)
from repoagent_fetch import hub, registry, stores, tracking
from repoagent_fetch.archives import Unpacking
from repoagent_fetch.fetch_options import Options, parse_parameters
from repoagent_fetch.pins import has_digests
from repoagent_fetch.plan import Plan, chosen, from_text, headers_of, need_files, to_text, with_headers


class Destinations:
    """The mapping of remote files, beside those that the model itself has. Nothing of the model is replaced."""

    def __init__(self, options: Options, own: Sequence[str]) -> None:
        self._into = options.into
        self._moves = dict(options.files)
        self._include = options.include
        self.own = tuple(own)
        self._taken = frozenset(own)
        self.rules = [options.into, *map(list, options.files), *options.include]

    def remote(self, path: str) -> str:
        """Where the remote file ``path`` goes.

        Raises:
            InvalidArgumentError: the model itself has a file there.
        """
        where = self._moves.get(path) or (f"{self._into}/{path}" if self._into else path)
        if where in self._taken:
            raise InvalidArgumentError(f"the model has {where!r} itself, and the source has it as well: remove one")
        return where

    def archived(self, path: str) -> str | None:
        """Where a file of an archive goes; None if it is not wanted."""
        return self.remote(path) if chosen(path, self._include) else None


VERSION: Final = 2
"""Of what lies in the cache."""


class Build:
    """Makes the directory of the model."""

    def __init__(self, model: AgentModel, plan: Plan, placing: Destinations, own: Path) -> None:
        self._model = model
        self._plan = plan
        self._placing = placing
        self._own = own
        self.ran = False
        """Whether the directory was made by this load; else it came from the cache."""

    def key(self) -> str:
        """Everything that the result depends on."""
        files = [
            (file.url, file.digest, file.size, file.tag, self._placing.remote(file.path)) for file in self._plan.files
        ]
        archives = [(one.file.url, one.file.digest, one.below) for one in self._plan.archives]
        digests = digest_files(self._own, dict.fromkeys(self._placing.own, ("sha256",)), follow=True)
        own = [(path, found["sha256"]) for path, found in digests.items()]
        return json.dumps(["fetch", VERSION, self._plan.source, files, archives, self._placing.rules, own])

    def __call__(self, target: Path) -> None:
        self.ran = True
        for path in self._placing.own:
            (target / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_beneath(self._own, path) as source, (target / path).open("xb") as copy:
                shutil.copyfileobj(source, copy)
        self._unpack(target)
        files = [_moved(file, self._placing.remote(file.path)) for file in self._plan.files]
        self._model.download(files, target, allow=self._plan.allow)
        if not any(path.is_file() for path in target.rglob("*")):
            raise InvalidArgumentError(f"{self._plan.source} has no file of those that are wanted")

    def _unpack(self, target: Path) -> None:
        """Archives lie beside ``target`` meanwhile: within the cache they are links, not copies."""
        if not self._plan.archives:
            return
        beside = target.parent / "layers"
        beside.mkdir(mode=0o700)
        # A manifest may name one layer many times, which comes once.
        files = {one.file.digest: _moved(one.file, one.file.digest.replace(":", "-")) for one in self._plan.archives}
        self._model.download(list(files.values()), beside, allow=self._plan.allow)
        unpacking = Unpacking(
            target,
            self._placing.archived,
            packed=sum(path.stat().st_size for path in beside.iterdir()),
            most_files=self._model.limits.download_files,
            check_cancelled=self._check,
        )
        for one in self._plan.archives:
            unpacking.unpack(beside / files[one.file.digest].path, one.compression, one.below)
        shutil.rmtree(beside)

    def _check(self) -> None:
        if self._model.cancelled:
            raise CancelledError("cancelled while unpacking a layer")


def _moved(file: RemoteFile, path: str) -> RemoteFile:
    return RemoteFile(path, file.url, file.size, file.digest, file.tag, file.headers)


def evidence(plan: Plan, fetched: bool) -> dict[str, str]:
    """One record of the load report; later agents add its source and revision to their own.

    Args:
        plan: What was fetched.
        fetched: Whether this load did it; else it came from the cache.
    """
    record = {"source": plan.source}
    if plan.revision:
        record["revision"] = plan.revision
    return {
        **record,
        "pinned": "yes" if plan.pinned else "no",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "result": "fetched" if fetched else "from the cache",
    }


_SCHEMES: Final[Mapping[str, Callable[[AgentModel, Options], Plan]]] = {
    "hf": hub.resolve,
    "oci": registry.resolve,
    "models": tracking.resolve,
    **dict.fromkeys(("s3", "gs", "gcs", "az", "abfs", "abfss", "as", "http", "https"), stores.resolve),
}


class FetchAgent(Agent):
    """Fetches a model from a hub, a registry, a bucket or a web server at LOAD. Its README has the parameters."""

    api_version = 1

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What could still change if the operator demanded the agent with ``parameters``."""
        options = parse_parameters(parameters)
        return [f"fetch: {options.url[:100]} may change at any time (floating)"] if options.floating else []

    def load(self, model: AgentModel) -> None:
        """Bring the files here, beside those that the model has, and move the model to them."""
        options = parse_parameters(model.parameters)
        _check_secrets(model, options)
        plan = need_files(_plan(model, options))
        own = model.localize()
        placing = Destinations(options, _own_files(own))
        build = Build(model, plan, placing, own)
        try:
            tree = model.cache.get_or_build(build.key(), build)
        except UnsupportedError:  # confidential, or a program without a cache
            tree = model.acquire_location() / "model"
            tree.mkdir(exist_ok=True)
            build(tree)
        model.update_location(tree)
        _report(model, plan, fetched=build.ran)


def _check_secrets(model: AgentModel, options: Options) -> None:
    """A model that names both a secret of the server and where it is sent would learn it."""
    if not model.demanded and (options.token or options.username or options.password):
        raise InvalidArgumentError("'token', 'username' and 'password' may only be given in the operator's policy")


def _plan(model: AgentModel, options: Options) -> Plan:
    """What to fetch. A plan that a commit or a digest decides is kept: the next load asks no one."""
    scheme = options.url.partition(":")[0].lower()
    if scheme not in _SCHEMES:
        known = "hf://, s3://, gs://, az://, as://, https://, oci://, models:/"
        raise InvalidArgumentError(f"'{scheme[:20]}:' is not a place to fetch from; expected one of {known}")
    resolve = _SCHEMES[scheme]
    if not _is_decided(scheme, options):
        return resolve(model, options)

    def write(target: Path) -> None:
        (target / "plan.json").write_text(to_text(resolve(model, options)))

    server = hub.endpoint() if scheme == "hf" else tracking.server(model, options) if scheme == "models" else ""
    given = [options.url, options.include, options.digests, options.manifest]
    # A model of its own may not ask what the operator's policy may: the plan has the hosts that need not be public.
    name = json.dumps(["fetch plan", VERSION, server, *given, model.demanded])
    try:
        directory = model.cache.get_or_build(name, write)
    except UnsupportedError:
        return resolve(model, options)
    plan = from_text((directory / "plan.json").read_text(), None)
    if scheme == "oci":
        return with_headers(plan, registry.login(model, options).headers)
    return with_headers(plan, headers_of(model, options), below=f"{server}/")


def _is_decided(scheme: str, options: Options) -> bool:
    """Whether a commit or digests that are given decide what the servers between here and the files answer."""
    match scheme:
        case "hf":
            return hub.is_pinned(options) or has_digests(options)
        case "oci":
            return registry.is_pinned(options) or has_digests(options)
        case _:
            return scheme == "models" and has_digests(options)


def _report(model: AgentModel, plan: Plan, *, fetched: bool) -> None:
    how = f"fetched {plan.source}" if fetched else f"{plan.source}, from the cache"
    notes = [how, "pinned" if plan.pinned else "not pinned: it may be another model tomorrow"]
    if plan.source.startswith("oci://"):
        notes.append("oci: a container registry")
    digests = {file.path: file.digest for file in plan.files[:50] if file.digest}
    model.report(digests=digests, note="; ".join(notes), evidence=evidence(plan, fetched))


def _own_files(root: Path) -> list[str]:
    """The files that the model has itself, and links to files in it."""
    return sorted(
        path
        for path, mode, _ in walk_beneath(root)
        if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _leads_to_file(root, path))
    )


def _leads_to_file(root: Path, link: str) -> bool:
    try:
        with open_beneath(root, link):
            return True
    except (FileNotFoundError, IsADirectoryError):
        return False
