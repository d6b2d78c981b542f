"""``repoagent prepare MODEL DIRECTORY``: run a model's agents, and leave the result where another server reads it."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repoagent.cli.interrupt import StopSignals
from repoagent.cli.loading import (
    load_model,
    loader_flags,
    open_model,
    open_options,
    show_report,
    take_charge,
)
from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError
from repoagent.public_text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repoagent.handover.destination import Destination
    from repoagent.loader.assembly import LoaderOptions
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.plugins import PluginManager

_PREFIX: Final = "repoagent+"
"""Before the scheme of a URL: KServe chooses the initializer by prefixes, and ``s3://`` is its own."""


@click.command()
@click.argument("pairs", metavar="MODEL DIRECTORY [MODEL DIRECTORY]...", nargs=-1, required=True)
@loader_flags
@click.option("--allow-disk", is_flag=True, help="Allow plaintext of encrypted models on a disk.")
@click.option("--allow-unchecked", is_flag=True, help="Allow models that no agent looked at.")
def prepare(pairs: tuple[str, ...], allow_disk: bool, allow_unchecked: bool, **values: Any) -> None:
    """Run the agents of each MODEL (a directory or a URL), and put the result into its DIRECTORY.

    For an init container, or a step of a release: the server that reads DIRECTORY knows nothing of agents. DIRECTORY is
    empty, missing, or from an earlier call. All models arrive or none. Each flag is also a variable:
    REPOAGENT_PREPARE_AGENT_POLICY and so on. Exits 1 if a model is refused.
    """
    if len(pairs) % 2:
        raise click.UsageError("each MODEL needs a DIRECTORY: the number of arguments is odd")
    models, directories = pairs[::2], pairs[1::2]
    stop = take_charge()
    try:
        chains = _prepare(models, [*map(Path, directories)], allow_disk, allow_unchecked, values, stop)
    except RepoAgentError as error:
        show_report(getattr(error, "report", None))
        if stop.number:
            sys.exit(128 + stop.number)
        raise
    for chain, directory in zip(chains, directories, strict=True):
        show_report(chain.report)  # also of an agent that failed in its unload: the result is there all the same
        click.echo(printable(f"{chain.name}: ready in {directory}"))


def _prepare(
    models: "Sequence[str]",
    directories: "Sequence[Path]",
    allow_disk: bool,
    allow_unchecked: bool,
    values: dict[str, Any],
    stop: StopSignals,
) -> "list[LoadedChain]":
    """Every model in its directory, or none in any; the chains have ended."""
    from repoagent.handover.destination import Destination

    chains: list[LoadedChain] = []
    versions: list[list[int]] = []
    with ExitStack() as resources:
        options, plugins = open_options(values, resources)
        models = [model.removeprefix(_PREFIX) for model in models]
        _refuse_nested(models, directories, plugins.registry("filesystems"))
        places = [resources.enter_context(Destination(one.absolute())) for one in directories]
        try:
            for model, place in zip(models, places, strict=True):
                chains.append(_load(model, place, options, plugins, resources, stop, allow_disk, allow_unchecked))
                versions.append(chains[-1].version_dirs)
                place.stage(chains[-1], allow_disk=allow_disk, cancelled=stop.is_set)
            stop.hold()
            if stop.is_set():
                raise CancelledError("stopped before the models were put in their places")
            for chain, served in zip(chains, versions, strict=True):
                chain.attest(served)
            for place in places:
                place.publish()
        except BaseException as error:
            for chain in chains:
                chain.fail(error)
            raise
        for chain in chains:
            chain.complete()
            chain.unload()
            chain.unload_complete()
    return chains


def _refuse_nested(models: "Sequence[str]", directories: "Sequence[Path]", filesystems: "Mapping[str, str]") -> None:
    """A directory is emptied first: no model may lie in one, however it is spelled, and no other directory."""
    for outer, inner in permutations([directory.resolve() for directory in directories], 2):
        if inner.is_relative_to(outer):
            raise InvalidArgumentError(f"{inner} is or lies in {outer}; each model needs a directory of its own")
    from repoagent.storage.repositories.sources import open_source

    sources = [open_source("model", model, filesystems=filesystems) for model in models]
    for model in (Path(source.root).resolve() for source in sources if not source.is_remote):
        for directory in directories:
            if model.is_relative_to(directory.resolve()):
                raise InvalidArgumentError(f"the model {model} lies in {directory}, which is emptied first")


def _load(
    model: str,
    place: "Destination",
    options: "LoaderOptions",
    plugins: "PluginManager",
    resources: ExitStack,
    stop: StopSignals,
    allow_disk: bool,
    allow_unchecked: bool,
) -> "LoadedChain":
    """The chain of ``model``; plaintext is made in the filesystem of ``place``, if that is one in memory."""
    from repoagent.loader.assembly import open_loader

    if place.in_memory or not allow_disk:
        options = replace(options, confidential_directory=place.path)
    loader = open_loader(options, plugins, resources)
    source = open_model(model, plugins.registry("filesystems"), options.limits)
    loader.admit_command(source.name, "prepare")
    return load_model(loader, source, stop, allow_unchecked=allow_unchecked)


for _option in prepare.params:
    if isinstance(_option, click.Option):
        _option.envvar = "REPOAGENT_PREPARE_" + _option.opts[0].removeprefix("--").replace("-", "_").upper()
