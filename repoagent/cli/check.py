"""``repoagent check MODEL_DIR``: what would happen if this model were loaded, without serving it."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repoagent.cli.agent_flags import agent_flags
from repoagent.cli.backend_settings import PAIR, merge_settings
from repoagent.cli.interrupt import interrupt_flag
from repoagent.cli.limit_flags import limit_flags, take_limits
from repoagent.cli.progress import progress_line
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.public_text import printable

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.cli.completed_config import Examined
    from repoagent.limits import Limits
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.serving.options import CoreOptions
    from repoagent.storage import ModelSource

__all__ = ["check"]


@click.command()
@click.argument("model_dir")
@agent_flags
@click.option("--agent-policy", type=click.Path(path_type=Path), help="The operator's policy (a TOML file).")
@click.option(
    "--workspace-directory",
    type=click.Path(path_type=Path),
    help="Where loads keep private directories. [default: below /tmp]",
)
@click.option(
    "--cache-directory",
    type=click.Path(path_type=Path),
    help="Where results are kept between loads. [default: below the user's cache directory]",
)
@click.option("--model-config-name", help="Read configs/NAME.pbtxt of the model, if it exists.")
@click.option(
    "--allow-config-variables",
    multiple=True,
    metavar="NAME",
    help="A variable that config.pbtxt may use; repeat for more.",
)
@click.option(
    "--cache-quota-bytes",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The largest size of the cache; 0 means no limit.",
)
@click.option(
    "--repository-timeout",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Seconds that a remote store may take to answer.",
)
@click.option(
    "--confidential-directory",
    type=click.Path(path_type=Path),
    help="Memory filesystem for plaintext. [default: /dev/shm]",
)
@click.option("--allow-swap", is_flag=True, help="Allow confidential plaintext in memory that may be swapped.")
@click.option("--allow-exec-keys", is_flag=True, help="Allow key references that run programs (exec:COMMAND).")
@click.option(
    "--complete-config",
    is_flag=True,
    help="Complete and check the configuration too. Backends read the model's files; a Python model's code may run.",
)
@click.option("--disable-auto-complete-config", is_flag=True, help="Check it as written, not completed from files.")
@click.option(
    "--backend-config",
    type=PAIR,
    multiple=True,
    metavar="BACKEND,SETTING=VALUE",
    help="Setting of a backend; repeat for more.",
)
@limit_flags
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check(model_dir: str, as_json: bool, complete_config: bool, **values: Any) -> None:
    """Parse the model at MODEL_DIR (a directory or a URL), run its agents, and print the load report.

    The agents run as for a load that is followed by an unload; nothing is served. Flags that `repoagent serve` has mean
    the same here. Exits 1 if the model is refused, or an agent fails in its unload.
    """
    from repoagent.cli.completed_config import examine
    from repoagent.loader.plugins import PluginManager
    from repoagent.sentinel import marked
    from repoagent.serving.assembly import open_loader

    options = _options(values)
    examined: list[Examined] = []
    # The report has what agents say on purpose; only what surprised them is worth a traceback besides. A Ctrl-C is not.
    logging.getLogger("repoagent.loader").addFilter(
        lambda record: bool(record.exc_info) and not isinstance(sys.exc_info()[1], KeyboardInterrupt)
    )
    with ExitStack() as resources:
        resources.enter_context(marked())
        plugins = resources.enter_context(PluginManager())
        source = _source(model_dir, plugins.registry("filesystems"), options.limits)
        line = progress_line()
        loader = open_loader(options, plugins, resources)
        interrupted = interrupt_flag()
        try:
            source.fingerprint()  # looks at every file, as a server does before it loads one
            chain = loader.load(source, on_progress=line.show if line else None, cancelled=interrupted.is_set)
            _require_loadable(loader, chain)
            if complete_config or options.strict_model_config:
                examined = examine(options, plugins, loader, chain)
        except RepoAgentError as error:
            if line:
                line.clear()
            _show(getattr(error, "report", None), as_json)
            if interrupted.is_set():
                raise click.Abort from error
            raise
        chain.complete()
        chain.unload()
        chain.unload_complete()
        if line:
            line.clear()
        _show(chain.report, as_json, examined)
    _require_unload(chain.report)
    if not as_json:
        click.echo(f"{source.name}: ok")


def _require_unload(report: "LoadReport") -> None:
    """A server would go on after this; whoever checks a model wants to know."""
    failed = [(entry.agent, action) for entry in report.entries for action in entry.actions if action.error]
    if failed:
        agent, action = failed[0]
        raise InternalError(f"the model loads, but agent '{agent}' failed in {action.action}: {action.error}")


def _options(values: dict[str, Any]) -> "CoreOptions":
    from repoagent.config.variables import config_variables
    from repoagent.serving.options import CoreOptions

    defaults = CoreOptions(repositories=())
    return CoreOptions(
        repositories=(),
        repoagent_directory=values["repoagent_directory"] or defaults.repoagent_directory,
        repoagents_from_directory=values["repoagents_from_directory"],
        agent_policy=values["agent_policy"],
        workspace_directory=values["workspace_directory"],
        cache_directory=values["cache_directory"],
        cache_quota_bytes=values["cache_quota_bytes"] or None,
        confidential_directory=values["confidential_directory"],
        config_variables=config_variables(values["allow_config_variables"]),
        model_config_name=values["model_config_name"],
        strict_model_config=values["disable_auto_complete_config"],
        repository_timeout_seconds=values["repository_timeout"],
        allow_swap=values["allow_swap"],
        allow_exec_keys=values["allow_exec_keys"],
        backend_config=merge_settings(values["backend_config"]),
        limits=take_limits(values),
    )


def _require_loadable(loader: "Loader", chain: "LoadedChain") -> None:
    """Refuse what no server could load: a model of which no version is left, or whose backend the policy refuses."""
    from repoagent.config import backend_of, default_config, no_version, normalize, select_versions

    config = chain.config or default_config(chain.name)
    available = chain.version_dirs
    versions = select_versions(config, available)
    try:
        if backend_of(config) != "ensemble" and not versions:
            raise InvalidArgumentError(no_version(chain.name, available))
        for version in versions:
            # Where the configuration does not name the backend, the files do.
            files = chain.files.names(str(version))
            loader.admit(chain.name, normalize(config, model_name=chain.name, files=files, gpus=None))
    except RepoAgentError as error:
        chain.fail(error)
        error.report = chain.report
        raise


def _source(model_dir: str, filesystems: Mapping[str, str], limits: "Limits") -> "ModelSource":
    """The model as a repository of its parent directory sees it."""
    from repoagent.storage import Repository

    trimmed = model_dir.rstrip("/")
    if "://" not in trimmed:
        trimmed = os.path.abspath(trimmed)
        _refuse_a_repository(Path(trimmed))
    parent, _, name = trimmed.rpartition("/")
    if parent.endswith(":/"):
        parent += "/"  # a model at the top of a filesystem
    source = Repository.open(parent or "/", filesystems=filesystems, limits=limits).model(name)
    if source is None:
        raise NotFoundError(f"there is no model directory {model_dir}")
    return source


def _refuse_a_repository(directory: Path) -> None:
    """A directory that is no model, and whose directories are models, has been taken for one of them."""
    if not directory.is_dir() or _is_model(directory):
        return
    models = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and _is_model(entry))
    if models:
        raise InvalidArgumentError(
            f"{directory} is a model repository, not a model; check one of its models, such as {directory / models[0]}"
        )


def _is_model(directory: Path) -> bool:
    return (directory / "config.pbtxt").is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in directory.iterdir()
    )


def _show(report: "LoadReport | None", as_json: bool, examined: "Sequence[Examined]" = ()) -> None:
    if report is None:
        return
    if as_json:
        shown = report.to_dict()
        if examined:
            shown["versions"] = [one.to_dict() for one in examined]
        click.echo(json.dumps(shown, indent=2))
        return
    for line in (*report.lines(), *(line for one in examined for line in one.lines())):
        click.echo(printable(line))
