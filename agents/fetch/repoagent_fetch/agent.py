"""The agent: brings a model from elsewhere, and hands a directory of this machine on."""

import json
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from repoagent.api import (
    Agent,
    AgentModel,
    InvalidArgumentError,
    Parameters,
    UnsupportedError,
    open_beneath,
    walk_beneath,
)
from repoagent_fetch import hub, registry, stores, tracking
from repoagent_fetch.building import VERSION, Build, Destinations
from repoagent_fetch.options import Options, parse_parameters
from repoagent_fetch.pins import has_digests
from repoagent_fetch.plan import Plan, from_text, headers_of, need_files, to_text, with_headers

__all__ = ["FetchAgent", "evidence"]


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
    """What to fetch. A plan that a commit or a digest decides is kept: the next load asks nobody."""
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
