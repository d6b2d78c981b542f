"""``repoagent check MODEL_DIR``: what would happen if this model were loaded, without serving it."""

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from repoagent.cli.flags import PAIR, merge_settings
from repoagent.cli.interrupt import interrupt_flag
from repoagent.cli.loading import (
    loader_flags,
    open_model,
    open_options,
    quiet_tracebacks,
    require_unload,
    show_report,
)
from repoagent.cli.progress import shown_progress
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from repoagent.api.report import LoadReport
    from repoagent.config import ModelConfig
    from repoagent.limits import Limits
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.loader.plugins import PluginManager
    from repoagent.serving.versions.model_builder import ModelBuilder


@dataclass(frozen=True, slots=True)
class _Examined:
    """One version that a server would load."""

    number: int
    config: "ModelConfig"
    problem: str
    """Why this machine cannot execute it; empty if nothing is known against it."""

    def lines(self) -> list[str]:
        parts = [f"version {self.number}: backend {self.config.backend or 'ensemble'}"]
        parts.append(f"max_batch_size {self.config.max_batch_size}")
        parts += [f"input '{item.name}' {list(item.dims)}" for item in self.config.input]
        parts += [f"output '{item.name}' {list(item.dims)}" for item in self.config.output]
        head = ", ".join(parts)
        return [head, f"version {self.number} cannot run here: {self.problem}"] if self.problem else [head]

    def to_dict(self) -> dict[str, Any]:
        from repoagent.config import redact, write_json

        return {"version": self.number, "config": write_json(redact(self.config)), "problem": self.problem}


class _NoServer:
    """What a Python model asks in its ``auto_complete_config``, where no server runs."""

    def _refuse(self, *_: object, **__: object) -> "NoReturn":
        raise UnsupportedError("no server runs in 'repoagent check': a model cannot load or ask another one here")

    submit = cancel = load = unload = model_ready = _refuse


def _builder(
    settings: "Mapping[str, Mapping[str, str]]",
    strict: bool,
    limits: "Limits",
    plugins: "PluginManager",
    loader: "Loader",
) -> "ModelBuilder":
    """What a server makes versions with. ``settings`` are those of backends; ``strict`` completes nothing."""
    from repoagent.serving.backends.registry import BackendRegistry
    from repoagent.serving.versions.model_builder import ModelBuilder

    registry = BackendRegistry(plugins.registry("backends"), settings, limits)
    registry.bind(_NoServer())
    return ModelBuilder(registry, strict=strict, admit=loader.admit, limits=limits)


def _examine(builder: "ModelBuilder", chain: "LoadedChain") -> list[_Examined]:
    """Complete and check the configuration that the agents have left, for every version that a server would load;
    raises the error of a server that would refuse it."""
    from repoagent.serving.instances.instance import as_repoagent_error

    try:
        config = builder.configuration(chain.name, chain.config)
        versions = builder.plan(chain.name, config, chain.files)
        return [_Examined(one, *builder.examine(chain.name, config, chain.files, one)) for one in versions]
    except Exception as error:
        raise as_repoagent_error(error, chain.name) from error


_NO_SERVER: Final = "; no server loads it: it has no version directory (1, 2, ...)"


@click.command()
@click.argument("model_dir")
@loader_flags
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
@click.option("--for-command", is_flag=True, help="Check it for `repoagent run` or `prepare`: any backend, any files.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check(model_dir: str, as_json: bool, complete_config: bool, for_command: bool, **values: Any) -> None:
    """Parse the model at MODEL_DIR (a directory or a URL), run its agents, and print the load report.

    The agents run as for a load that is followed by an unload; nothing is served. Flags that `repoagent serve` has mean
    the same here. Exits 1 if the model is refused, or an agent fails in its unload.
    """
    from repoagent.loader.assembly import open_loader

    strict, settings = values.pop("disable_auto_complete_config"), merge_settings(values.pop("backend_config"))
    if for_command and (complete_config or strict):
        raise click.UsageError("--for-command looks at no configuration: leave the flags about it out")
    examined: list[_Examined] = []
    quiet_tracebacks()
    with ExitStack() as resources:
        options, plugins = open_options(values, resources)
        source = open_model(model_dir, plugins.registry("filesystems"), options.limits)
        loader = open_loader(options, plugins, resources)
        interrupted = interrupt_flag()
        try:
            with shown_progress() as show:
                source.fingerprint()  # looks at every file, as a server does before it loads one
                chain = loader.load(source, on_progress=show, cancelled=interrupted.is_set)
                with _fails(chain):
                    builder = _builder(settings, strict, options.limits, plugins, loader)
                    served = _require_loadable(builder, loader, chain, for_command)
                    if served and (complete_config or strict):
                        examined = _examine(builder, chain)
                    chain.attest(chain.version_dirs)
                chain.complete()
                chain.unload()
                chain.unload_complete()
        except RepoAgentError as error:
            _show(getattr(error, "report", None), as_json)
            if interrupted.is_set():
                raise click.Abort from error
            raise
        _show(chain.report, as_json, examined)
    require_unload(chain.report)
    if not as_json:
        click.echo(f"{source.name}: ok" + ("" if served else " for a command" + ("" if for_command else _NO_SERVER)))


@contextmanager
def _fails(chain: "LoadedChain") -> "Iterator[None]":
    """What is raised in the block ends the load, and has its report."""
    try:
        yield
    except RepoAgentError as error:
        chain.fail(error)
        error.report = chain.report
        raise


def _require_loadable(builder: "ModelBuilder", loader: "Loader", chain: "LoadedChain", for_command: bool) -> bool:
    """Refuse what could not be loaded: a model of which no version is left, or one that :func:`_require_backend` does.

    Returns whether a server is to load it; a folder that names no backend and has no versions is for a command, too.
    """
    from repoagent.config import default_config, executed_by, no_version, normalize, select_versions

    config = chain.config or default_config(chain.name)
    available = chain.version_dirs
    versions = select_versions(config, available)
    if for_command or (not available and not executed_by(config) and chain.files.names()):
        loader.admit_command(chain.name, None)
        return False
    if executed_by(config) == "ensemble":
        loader.admit(chain.name, normalize(config, model_name=chain.name))
        return True
    if not versions:
        raise InvalidArgumentError(no_version(chain.name, available))
    for version in versions:
        _require_backend(builder, chain, config, version)
    return True


def _require_backend(builder: "ModelBuilder", chain: "LoadedChain", config: "ModelConfig", version: int) -> None:
    """Refuse a version whose backend is unknown or not allowed, or that lacks the file of its backend."""
    from repoagent.config import model_filename
    from repoagent.config.backends import model_filenames, way_out

    # Where the configuration does not name the backend, the files do.
    config = builder.named(chain.name, config, chain.files, version)
    builder.registry.require(config.backend)
    path = f"{version}/{model_filename(config)}"
    if config.backend in model_filenames() and not chain.files.exists(path):
        way = way_out(chain.files.names(str(version)))
        held = f": version directory {version} holds {way}" if way else ""
        raise UnavailableError(f"unable to find '{path}' for model '{chain.name}'{held}")


def _show(report: "LoadReport | None", as_json: bool, examined: "Sequence[_Examined]" = ()) -> None:
    if report is not None and as_json:
        shown = report.to_dict()
        if examined:
            shown["versions"] = [one.to_dict() for one in examined]
        click.echo(json.dumps(shown, indent=2))
        return
    show_report(report, (line for one in examined for line in one.lines()))
