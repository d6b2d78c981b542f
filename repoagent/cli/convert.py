"""``repoagent convert FILE``: what the agent ``convert`` makes of a model file, without a server.

``repoagent convert verify URL KEY FILE`` builds a shared conversion again, and prints what differs.
"""

import filecmp
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from repoagent.api.converters import ConversionPlan, ConversionSource, Converter, Product, recognized
from repoagent.cli.flags import converter_flags, take_converter_settings
from repoagent.cli.interrupt import StopSignals
from repoagent.errors import AlreadyExistsError, InvalidArgumentError, RepoAgentError, error_of
from repoagent.installing import missing_formats
from repoagent.limits import DEFAULT_LIMITS
from repoagent.public_text import printable

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.loader.converting.environments import ConverterSettings
    from repoagent.loader.converting.registry import Converters

_F = TypeVar("_F", bound=Callable[..., Any])


def _pairs_of(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"'{value}' is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


def _parameter_flag(text: str) -> Callable[[_F], _F]:
    return click.option(
        "--parameter",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_pairs_of,
        help=f"{text}; repeat for more.",
    )


class _Convert(click.Command):
    """``repoagent convert verify ...`` is another command; a file of that name is ``./verify``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["verify"]:
            return verify.make_context(f"{info_name} verify", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command(cls=_Convert)
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--from", "source_format", help="The format of FILE. [default: what its content shows]")
@click.option("--to", "target_format", default="onnx", show_default=True, help="The format to convert to.")
@click.option("--output", type=click.Path(path_type=Path), help="The result. [default: the converter's, beside FILE]")
@_parameter_flag("A parameter of the converter")
@converter_flags
def convert(
    file: Path,
    source_format: str | None,
    target_format: str,
    output: Path | None,
    parameters: dict[str, str],
    **flags: Any,
) -> None:
    """Convert the model FILE, and print the configuration that serves the result.

    The format of FILE is found by its content where the package of its converter is installed. Exits 1 if FILE is
    refused.

    `repoagent convert verify URL KEY FILE` builds a shared conversion again, and compares.
    """
    from repoagent.config import ModelConfig, write_text
    from repoagent.converters import BUILT_IN_CONVERTERS
    from repoagent.loader.converting.registry import Converters
    from repoagent.loader.plugins import PluginManager

    with PluginManager() as plugins:
        converters = Converters(plugins.registry("converters", BUILT_IN_CONVERTERS))
    pair = (source_format or _recognized(file, target_format, converters), target_format)
    if output is not None:
        parameters = {**parameters, "output": output.name}
    directory = file.parent if output is None else output.parent
    if not directory.is_dir():
        raise InvalidArgumentError(f"--output: there is no directory {directory}; make it, or name another one")
    stop = StopSignals()
    try:
        settings = take_converter_settings(flags)
        converter, plan, product, written = _converted(converters, pair, file, directory, parameters, settings, stop)
    except RepoAgentError:
        if stop.number:
            sys.exit(128 + stop.number)
        raise
    for note in (*product.notes, *(f"written: {path}" for path in written)):
        click.echo(printable(note), err=True)
    config = ModelConfig()
    converter.configure(config, plan, product)
    click.echo(write_text(config), nl=False)


def _recognized(file: Path, target: str, converters: "Converters") -> str:
    pairs = [pair for pair in converters.pairs if pair[1] == target]
    if file.is_dir():
        raise InvalidArgumentError(
            f"{file} is a directory; name the file in it, such as model.safetensors, MLmodel or saved_model.pb"
        )
    found = [pair[0] for pair in pairs if file.is_file() and recognized(converters.get(pair), file.parent, file.name)]
    if len(found) == 1:
        return found[0]
    if not found and len(pairs) == 1:
        return pairs[0][0]
    known = ", ".join(source for source, _ in pairs) or "none"
    missing = missing_formats([source for source, _ in converters.pairs])
    raise InvalidArgumentError(
        f"{file}: its content shows no format that becomes '{target}'; name it with --from, one of: {known}"
        f"{missing and '; '}{missing}"
    )


def _converted(
    converters: "Converters",
    pair: tuple[str, str],
    file: Path,
    directory: Path,
    parameters: dict[str, str],
    given: "ConverterSettings",
    stop: StopSignals,
    config: "ModelConfig | None" = None,
) -> tuple[Converter, ConversionPlan, Product, list[Path]]:
    """The result of ``file``, made in ``directory``: its converter, plan, product and files."""
    from repoagent.loader.converting.build_process import build_in_child
    from repoagent.loader.converting.environments import jail_bytes, planned
    from repoagent.loader.converting.messages import BuildOrder
    from repoagent.loader.converting.result_files import refuse_foreign

    source = ConversionSource(file.absolute().parent, file.name, str(file), config)
    pair, source, parameters = converters.redirected(pair, source, parameters)
    file = file.parent / source.name
    converter: Converter = converters.get(pair)
    named = "" if "output" in converter.options else parameters.get("output", "")
    if named:  # it makes several files, so that only their directory can be chosen
        parameters = {name: value for name, value in parameters.items() if name != "output"}
    plan = planned(converter, pair, source, parameters, given)
    if named not in ("", plan.output):
        raise InvalidArgumentError(f"--output: the result is always called {plan.output}; name that, in any directory")
    _refuse_existing(directory / plan.output)
    label = f"the converter from '{pair[0]}' to '{pair[1]}'"
    with (
        tempfile.TemporaryDirectory(prefix=".convert-", dir=directory) as target,
        tempfile.TemporaryDirectory() as scratch,
    ):
        settings = dict(plan.settings)
        order = BuildOrder(
            converters.target(pair),
            str(source.directory),
            os.path.abspath(target),
            settings,
            confidential=False,
            environment=given.environment(pair[0]),
            inputs=plan.inputs,
            jail_bytes=jail_bytes(converter, DEFAULT_LIMITS),
        )
        try:
            product = build_in_child(order, Path(scratch), label, progress=_ignored, cancelled=stop.is_set)
        except RepoAgentError as error:
            raise error_of(error.code, f"{file}: {error.message}") from None
        if order.jail_bytes:
            refuse_foreign(Path(target), plan.output, pair[1], str(file))
        results = [path for path in sorted(Path(target).iterdir()) if not _same(path, directory / path.name)]
        for path in results:
            _refuse_existing(directory / path.name, "file" if path.name == plan.output else "directory")
        return converter, plan, product, [_placed(path, directory / path.name) for path in results]


def _placed(path: Path, place: Path) -> Path:
    """``path``, moved to ``place``. A link is never made over a file that has come meanwhile, as a rename is."""
    if path.is_file():
        with suppress(OSError):  # a filesystem may have no links
            os.link(path, place)
            return place
        _refuse_existing(place)
    return Path(shutil.move(path, place))


def _ignored(done: int, total: int | None, what: str) -> None:
    """A file takes about a second."""


def _same(path: Path, place: Path) -> bool:
    """Whether ``place`` has that file already: a decoder has some of its checkpoint as they are."""
    plain = path.is_file() and place.is_file() and not place.is_symlink()
    return plain and filecmp.cmp(path, place, shallow=False)


def _refuse_existing(path: Path, what: str = "file") -> None:
    if os.path.lexists(path):
        raise AlreadyExistsError(f"{path} is there already; name another {what} with --output")


_PATH: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_LONG: Final = 200
_KEY: Final = re.compile(r"convert-[0-9a-f]{64}")


@click.command()
@click.argument("url")
@click.argument("key")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--builder", type=_PATH, required=True, help="The public key of the builder (PEM or DER).")
@click.option("--config", type=_PATH, help="The config.pbtxt of the model, if it has one.")
@_parameter_flag("A parameter of the converter, if its default is not what was built")
@converter_flags
def verify(
    url: str, key: str, file: Path, builder: Path, config: Path | None, parameters: dict[str, str], **flags: Any
) -> None:
    """Convert FILE again, and compare with the result KEY that a builder signed in the shared cache at URL.

    Prints what differs, one line each. Exits 0 if nothing does, 1 if anything does, 2 if it cannot be built here.
    """
    stop = StopSignals()
    try:
        statement, tools = _signed(url, key, builder.read_bytes())
        differences = _differences(key, statement, tools, file, _config(config), parameters, flags, stop)
    except (OSError, RepoAgentError) as error:
        if stop.number:
            sys.exit(128 + stop.number)
        click.echo(printable(f"repoagent: {error}"), err=True)
        sys.exit(2)
    for difference in differences:
        click.echo(printable(difference), err=True)
    if differences:
        sys.exit(1)
    click.echo(printable(f"{key}: the same result was built again: OK"))


def _signed(url: str, key: str, builder: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The statement that the holder of the key ``builder`` signed as the result ``key``, and its tools."""
    from repoagent.api.envelopes import read_public_key
    from repoagent.loader.converting.shared import Trust, open_shared
    from repoagent.loader.plugins import PluginManager

    if not _KEY.fullmatch(key):
        raise InvalidArgumentError(f"'{key}' is not the key of a conversion, convert- and 64 hexadecimal digits")
    with PluginManager() as plugins:
        filesystems = plugins.registry("filesystems")
        shared = open_shared(url, None, lambda _: Trust(), filesystems=filesystems, most=0)
        try:
            _, statement, tools = shared.signed(key, read_public_key(builder))
        except (LookupError, TypeError, AttributeError, ValueError):
            raise _unknown_form() from None
    return statement, tools


def _unknown_form() -> InvalidArgumentError:
    return InvalidArgumentError("the statement is signed, but not in a form that this version knows")


def _config(path: Path | None) -> "ModelConfig | None":
    from repoagent.config import read_text

    return None if path is None else read_text(path.read_text(encoding="utf-8"), source=str(path))


def _differences(
    key: str,
    statement: dict[str, Any],
    tools: dict[str, Any],
    file: Path,
    config: "ModelConfig | None",
    parameters: Mapping[str, str],
    flags: dict[str, Any],
    stop: StopSignals,
) -> list[str]:
    """What is not here as it was signed: what it was made of and how, and, if that is the same, what comes of it."""
    from repoagent.converters import BUILT_IN_CONVERTERS
    from repoagent.loader.conversion import cache_key
    from repoagent.loader.converting.environments import planned
    from repoagent.loader.converting.provenance import definition_of, tools_of
    from repoagent.loader.converting.registry import Converters
    from repoagent.loader.plugins import PluginManager

    with PluginManager() as plugins:
        converters = Converters(plugins.registry("converters", BUILT_IN_CONVERTERS))
    try:
        signed = statement["predicate"]["buildDefinition"]
        asked = signed["externalParameters"]
        pair = (asked["from"], asked["to"])
        known = converters.get(pair).options
        options = {name: str(value) for name, value in asked["settings"].items() if name in known} | dict(parameters)
        results = {one["name"]: [one["digest"], one.get("annotations", {})] for one in statement["subject"]}
    except (KeyError, TypeError, AttributeError, ValueError):
        raise _unknown_form() from None
    settings = take_converter_settings(flags)
    source = ConversionSource(file.absolute().parent, file.name, str(file), config)
    converter = converters.get(pair)
    plan = planned(converter, pair, source, options, settings)
    digests = _digests(source.directory, plan.inputs)
    here = {"": definition_of(pair, plan, digests), "tools": tools_of(converter.version, plan)}
    found = list(_unlike("", {"": signed, "tools": tools}, here))
    if not found and key != cache_key(pair, converter.version, plan, digests):
        found = [f"the statement is that of another key: {cache_key(pair, converter.version, plan, digests)}"]
    return found or list(_unlike("", results, _built(converters, pair, file, options, settings, stop, config)))


def _built(
    converters: "Converters",
    pair: tuple[str, str],
    file: Path,
    options: dict[str, str],
    settings: "ConverterSettings",
    stop: StopSignals,
    config: "ModelConfig | None",
) -> dict[str, Any]:
    """The result as a statement has it: name -> digest and annotations of each file."""
    with tempfile.TemporaryDirectory(prefix="repoagent-") as scratch:
        target = Path(scratch)
        _, plan, product, _ = _converted(converters, pair, file, target, options, settings, stop, config)
        names = [path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()]
        made = {name: [{"sha256": digest}, {}] for name, digest in _digests(target, names).items()}
    if plan.output in made:
        made[plan.output][1] = dict(product.annotations)
    return made


def _digests(directory: Path, names: Sequence[str]) -> dict[str, str]:
    from repoagent.beneath.digests import digest_files

    found = digest_files(directory, dict.fromkeys(names, ("sha256",)))
    return {name: digests["sha256"] for name, digests in found.items()}


def _unlike(where: str, signed: Any, here: Any) -> Iterator[str]:
    """One sentence for each value that is not the same."""
    if isinstance(signed, dict) and isinstance(here, dict):
        for name in sorted(signed.keys() | here.keys()):
            yield from _unlike(f"{where}.{name}".strip("."), signed.get(name), here.get(name))
    elif isinstance(signed, list) and isinstance(here, list | tuple) and len(signed) == len(here):
        for number, (one, other) in enumerate(zip(signed, here, strict=True)):
            yield from _unlike(f"{where}[{number}]", one, other)
    elif signed != here:
        yield f"{where}: signed {_shown(signed)}, here {_shown(here)}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
