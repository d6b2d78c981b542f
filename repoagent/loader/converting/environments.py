"""What the operator gives to converters: environments of Python packages, and the permission to open foreign code."""

import hashlib
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

from repoagent.api.converters import ConversionPlan, ConversionSource, Converter
from repoagent.beneath import jail
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.limits import Limits
from repoagent.loader.converting.registry import option_values

_PERMISSION: Final = (
    "models of '{}' run code when they are opened, which the operator allows with --allow-code-conversion"
)


@dataclass(frozen=True, slots=True)
class ConverterSettings:
    """The flags ``--converter-environment`` and ``--allow-code-conversion``."""

    environments: Mapping[str, Path] = field(default_factory=dict)
    """The format that is converted -> the virtual environment that its converters run in."""
    allow_code: bool = False
    """Let sources that are code be opened, in a jail."""

    @classmethod
    def parse(cls, environments: Iterable[str], allow_code: bool) -> "ConverterSettings":
        """From the values ``FROM=DIR`` of the flag. Raises ``InvalidArgumentError`` for another form, a directory
        without a virtual environment, or one that everyone may change."""
        found: dict[str, Path] = {}
        for text in environments:
            source, separator, directory = text.partition("=")
            if not (source and separator and directory) or source in found:
                raise InvalidArgumentError(f"--converter-environment: '{text}' is not FROM=DIR, or FROM is there twice")
            path = Path(directory).absolute()
            if not (path / "bin" / "python").is_file():
                raise InvalidArgumentError(
                    f"--converter-environment: {path} is not a virtual environment: no bin/python"
                )
            for place in (path, path / "bin", *path.glob("lib/python3*/site-packages")):
                if place.stat().st_mode & stat.S_IWOTH:
                    raise InvalidArgumentError(f"--converter-environment: everyone may write to {place}: chmod o-w")
            found[source] = path
        return cls(found, allow_code)

    def environment(self, source_format: str) -> str:
        """The directory of its environment; empty for the interpreter of this process."""
        return str(self.environments.get(source_format, ""))


def runs_code(converter: Converter) -> bool:
    """Whether opening a source of this converter runs what is in it."""
    return bool(getattr(converter, "runs_code", False))


def jail_bytes(converter: Converter, limits: Limits) -> int:
    """How much memory its process may take in a jail; 0 for no jail.

    A source that is data is read in one where the kernel has it, if the converter declares ``jailed``: its library may
    have faults.
    """
    jailed = runs_code(converter) or (getattr(converter, "jailed", False) and not jail.problem())
    return limits.build_bytes if jailed else 0


def planned(
    converter: Converter,
    pair: tuple[str, str],
    source: ConversionSource,
    options: Mapping[str, str],
    settings: ConverterSettings,
) -> ConversionPlan:
    """The plan of a conversion, with the versions of the packages that it is made with, where its process runs. Raises
    ``UnsupportedError`` for code that may not be opened, or without a package."""
    environment = settings.environments.get(pair[0])
    needed: tuple[str, ...] = getattr(converter, "packages", ())
    used = tuple(one for names in (*needed, *getattr(converter, "libraries", ())) for one in names.split("|"))
    tools = _versions(used) if environment is None else _versions_in(environment, used)
    missing = [names.split("|")[0] for names in needed if not tools.keys() & {*names.split("|")}]
    # All at once: an operator who mends one thing after another starts a server for each.
    remedies = []
    if runs_code(converter) and (problem := jail.problem()):
        remedies.append(f"runs code when it is opened, and needs a jail: {problem}")
    if runs_code(converter) and not settings.allow_code:
        remedies.append(_PERMISSION.format(pair[0]))
    if missing:
        remedies.append(_remedy(converter, pair[0], missing, environment))
    if remedies:
        instead = [text] if (text := getattr(converter, "instead", "")) else []
        raise UnsupportedError(f"{source.label}: {'; '.join([*remedies, *instead])}")
    plan = converter.plan(source, option_values(converter, options))
    return replace(plan, tools={**plan.tools, **tools}) if isinstance(plan, ConversionPlan) and tools else plan


def _remedy(converter: Converter, source: str, missing: list[str], environment: Path | None) -> str:
    names = " ".join(missing)
    text = f"the conversion from '{source}' needs {', '.join(missing)}"
    if environment is not None:
        return f"{text}; {environment}/bin/pip install {names}"
    if install := getattr(converter, "install", ""):
        return f"{text}; {install}"
    return f"{text}; install them in an environment of their own, and name it: --converter-environment {source}=DIR"


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _versions_in(environment: Path, names: Iterable[str]) -> dict[str, str]:
    """Versions, and a digest of all that is installed there; read without running anything of it."""
    places = sorted(str(path) for path in environment.glob("lib/python3*/site-packages"))
    installed = {one.metadata["Name"].lower().replace("_", "-"): one.version for one in distributions(path=places)}
    state = "\n".join([*places, *(f"{name}=={one}" for name, one in sorted(installed.items()))])
    digest = hashlib.sha256(state.encode()).hexdigest()[:16]
    return {name: installed[name] for name in names if name in installed} | {"environment": digest}
