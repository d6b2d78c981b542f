"""``repoagent fetch URL``: bring models into the cache before a server needs them."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from repoagent.cli.flags import agent_flags
from repoagent.cli.interrupt import interrupt_flag
from repoagent.cli.progress import shown_progress
from repoagent.errors import RepoAgentError
from repoagent.public_text import printable

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.loader.loader import Loader
    from repoagent.loader.plan import PlannedAgent

_AGENT = "fetch"
_OPTIONS = ("include", "digest", "manifest", "token", "username", "password", "tracking")


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@agent_flags
@click.option("--cache-directory", type=click.Path(path_type=Path), help="The cache of the server that will load them.")
@click.option("--include", multiple=True, help="A shell pattern of paths at the source; repeat for more.")
@click.option(
    "--digest", multiple=True, help="A file at the source and its digest, as PATH=sha256:HEX; repeat for more."
)
@click.option("--manifest", help="A sha256sum file at the source and its digest, as PATH=sha256:HEX.")
@click.option("--token", help="Reference to a token, such as env:HF_TOKEN.")
@click.option("--username", help="Reference to a user name, for a container registry.")
@click.option("--password", help="Reference to a password, for a container registry.")
@click.option("--tracking", help="URL of the MLflow registry.")
@click.option("--floating", is_flag=True, help="Accept a source that is not pinned.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def fetch(
    urls: tuple[str, ...],
    repoagent_directory: Path | None,
    repoagents_from_directory: tuple[str, ...],
    cache_directory: Path | None,
    as_json: bool,
    floating: bool,
    **given: object,
) -> None:
    """Download the models at URL into the cache, as the agent fetch does when a model is loaded.

    Exits 1 if a model cannot be downloaded. What was downloaded until then is kept, and the next call continues.
    """
    from repoagent.loader.agent_directory import DEFAULT_DIRECTORY
    from repoagent.loader.assembly import LoaderOptions, open_loader
    from repoagent.loader.plugins import PluginManager
    from repoagent.sentinel import marked

    _check_secrets(urls, given)
    parameters = [(name, value) for name in _OPTIONS for value in _values(given[name])]
    parameters += [("floating", "true")] if floating else []
    planner = _Planner(parameters)
    reports = []
    with ExitStack() as resources:
        resources.enter_context(marked())
        plugins = resources.enter_context(PluginManager())
        options = LoaderOptions(
            repoagent_directory=repoagent_directory or DEFAULT_DIRECTORY,
            repoagents_from_directory=repoagents_from_directory,
            cache_directory=cache_directory,
        )
        loader = open_loader(options, plugins, resources, planner=planner)
        for planner.url in urls:
            reports.append(_fetch(loader, resources))
            if not as_json:
                click.echo(f"{planner.url}: {_summary(reports[-1])}")
    if as_json:
        click.echo(json.dumps(reports, indent=2))


def _check_secrets(urls: Sequence[str], given: Mapping[str, object]) -> None:
    """What is secret goes to one server only."""
    secrets = [name for name in ("token", "username", "password") if given[name]]
    if secrets and len({_server_of(url) for url in urls}) > 1:
        raise click.UsageError(f"--{secrets[0]} would go to several servers: fetch from one server in each call")


def _server_of(url: str) -> str:
    """The hub is one server, whatever the model is called."""
    split = urlsplit(url)
    return split.scheme if split.scheme in ("hf", "models") else f"{split.scheme}://{split.netloc.lower()}"


def _values(value: object) -> Sequence[str]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(map(str, value))  # type: ignore[call-overload]


@dataclass
class _Planner:
    """Plans the agent fetch alone, as an operator's policy would demand it."""

    parameters: list[tuple[str, str]]
    url: str = ""

    def plan(
        self, _model_name: str, _config: "ModelConfig | None", *, overridden: bool = False
    ) -> Sequence["PlannedAgent"]:
        from repoagent.api import Parameters
        from repoagent.loader.plan import POLICY, PlannedAgent

        return [PlannedAgent(_AGENT, Parameters([("url", self.url), *self.parameters]), POLICY)]

    def admit(self, _model_name: str, _config: "ModelConfig") -> None:
        """Nothing is served."""

    def admit_command(self, _model_name: str, _command: str | None) -> None:
        """Nothing is run."""


def _fetch(loader: "Loader", resources: ExitStack) -> dict[str, Any]:
    from repoagent.storage.repositories.sources import open_source

    empty = resources.enter_context(tempfile.TemporaryDirectory(prefix="repoagent-fetch-"))
    interrupted = interrupt_flag()
    try:
        with shown_progress() as show:
            chain = loader.load(open_source(_AGENT, empty), on_progress=show, cancelled=interrupted.is_set)
    except RepoAgentError as error:
        if interrupted.is_set():
            raise click.Abort from error
        raise
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return dict(chain.report.to_dict())


def _summary(report: dict[str, Any]) -> str:
    action = report["entries"][0]["actions"][0]
    return printable(f"{action['bytes_written']} bytes; {action['notes'][-1]}")
