"""The agent: brings a model from elsewhere, and hands a directory of this machine on."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
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
    open_beneath,
)
from repoagent_fetch import hub, registry, stores, tracking
from repoagent_fetch.archives import Unpacking
from repoagent_fetch.options import Options, parse_parameters
from repoagent_fetch.placing import Placing
from repoagent_fetch.plan import Headers, Plan, from_text, headers_of, need_files, to_text, with_headers

__all__ = ["FetchAgent"]

_VERSION: Final = 1
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
        placing = Placing(options, _files(own))
        build = _Build(model, plan, placing, own)
        try:
            tree = model.cache.get_or_build(build.key(), build)
        except UnsupportedError:  # confidential, or a program without a cache
            tree = model.acquire_location() / "model"
            tree.mkdir(exist_ok=True)
            build(tree)
        model.update_location(tree)
        _report(model, plan, tree, fetched=build.ran)


def _check_secrets(model: AgentModel, options: Options) -> None:
    """A model that names both a secret of the server and where it is sent would learn it."""
    if not model.demanded and (options.token or options.username or options.password):
        raise InvalidArgumentError("'token', 'username' and 'password' may only be given in the operator's policy")


def _plan(model: AgentModel, options: Options) -> Plan:
    """What to fetch. A plan that a commit or a digest decides is kept: the next load asks nobody."""
    scheme = options.url.partition(":")[0].lower()
    if scheme not in _SCHEMES:
        known = "hf://, s3://, gs://, az://, as://, https://, oci://, models:/"
        raise InvalidArgumentError(f"'{scheme[:20]}:' is not a place to fetch from; expected one of {known}")
    resolve = _SCHEMES[scheme]
    kept = (scheme == "hf" and hub.is_pinned(options)) or (scheme == "oci" and registry.is_pinned(options))
    if not kept:
        return resolve(model, options)
    fresh: list[Plan] = []

    def write(target: Path) -> None:
        fresh.append(resolve(model, options))
        (target / "plan.json").write_text(to_text(fresh[0]))

    name = json.dumps(["fetch plan", _VERSION, options.url, options.include, stores.allowed(model, options.url)])
    try:
        directory = model.cache.get_or_build(name, write)
    except UnsupportedError:
        return resolve(model, options)
    plan = from_text((directory / "plan.json").read_text(), None)
    return with_headers(plan, _headers(model, options, scheme))


def _headers(model: AgentModel, options: Options, scheme: str) -> Headers | None:
    return registry.login(model, options).headers if scheme == "oci" else headers_of(model, options)


class _Build:
    """Makes the directory of the model."""

    def __init__(self, model: AgentModel, plan: Plan, placing: Placing, own: Path) -> None:
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
        own = [(path, _digest(self._own, path)) for path in self._placing.own]
        return json.dumps(["fetch", _VERSION, self._plan.source, files, archives, self._placing.rules, own])

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
        if not self._plan.archives:
            return
        unpacking = Unpacking(
            target, self._placing.archived, most_files=self._model.limits.download_files, check_cancelled=self._check
        )
        scratch = self._model.acquire_location() / "layers"
        scratch.mkdir(exist_ok=True)
        files = [_moved(one.file, str(number)) for number, one in enumerate(self._plan.archives)]
        self._model.download(files, scratch, allow=self._plan.allow)
        for number, one in enumerate(self._plan.archives):
            unpacking.unpack(scratch / str(number), one.compression, one.below)
        shutil.rmtree(scratch)

    def _check(self) -> None:
        if self._model.cancelled:
            raise CancelledError("cancelled while unpacking a layer")


def _moved(file: RemoteFile, path: str) -> RemoteFile:
    return RemoteFile(path, file.url, file.size, file.digest, file.tag, file.headers)


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _digest(root: Path, path: str) -> str:
    with open_beneath(root, path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _report(model: AgentModel, plan: Plan, tree: Path, *, fetched: bool) -> None:
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    how = f"fetched {plan.source}" if fetched else f"{plan.source}, from the cache"
    notes = [how, "pinned" if plan.pinned else "not pinned: it may be another model tomorrow"]
    if plan.source.startswith("oci://"):
        notes.append("oci: a container registry")
    digests = {file.path: file.digest for file in plan.files[:50] if file.digest}
    model.report(bytes_written=size if fetched else 0, digests=digests, note="; ".join(notes))
