"""How to get a part of this project that is not installed. This module imports nothing of the project."""

from collections.abc import Collection
from typing import Final

_PLACES: Final = {
    "repoagent-core": ".",
    "repoagent-server": "./server_stub",
    "repoagent-capi": "./capi",
    "repoagent-llm": "./llm",
}

_BACKENDS: Final = {"llm": "repoagent-llm"}
"""Backends that packages of this project add."""

_FORMATS: Final = {
    **dict.fromkeys(("decoder", "safetensors"), "repoagent-llm"),
    **dict.fromkeys(("catboost", "keras", "lightgbm", "lightgbm-skops", "mlflow", "pt2"), "repoagent-convert"),
    **dict.fromkeys(("savedmodel", "sklearn", "skops", "torch", "torchscript", "xgboost"), "repoagent-convert"),
}
"""Formats of converters that packages of this project add; a test compares them with what these register."""

_FILES: Final = {"genai_config.json": "llm"}
"""Model files by which such backends are known."""


def install_hint(distribution: str, *extras: str) -> str:
    """What to type to install ``distribution`` of this project, with ``extras``.

    Never its bare name: on a package index that name is not this project's, and may be anybody's.
    """
    place = _PLACES.get(distribution) or f"./agents/{distribution.removeprefix('repoagent-')}"
    target = f"'{place}[{','.join(extras)}]'" if extras else place
    return f"from a checkout: pip install {target}"


def missing_backend(name: str) -> str:
    """What a message states of a backend ``name`` that one of this project's packages has; else empty."""
    return _missing(_BACKENDS.get(name))


def missing_format(name: str) -> str:
    """The same of a format ``name`` that no installed converter knows."""
    return _missing(_FORMATS.get(name))


def missing_formats(known: Collection[str]) -> str:
    """The formats that converters of this project's packages have and that are not ``known``, each with its package."""
    missing = {package: [name for name, owner in _FORMATS.items() if owner == package] for package in _FORMATS.values()}
    return "; ".join(
        f"models of {', '.join(names)} need the package {package}, {install_hint(package)}"
        for package, names in missing.items()
        if not {*names} & {*known}
    )


def _missing(distribution: str | None) -> str:
    if distribution is None:
        return ""
    return f"it is in the package {distribution}, which is not installed; {install_hint(distribution)}"


def missing_owner(names: Collection[str], known: Collection[str]) -> str:
    """What a message states of a directory whose file only a backend of a missing package knows; else empty.

    ``known`` are the files that the installed backends know.
    """
    for name, backend in _FILES.items():
        if name in names and name not in known:
            return f"{name}, which the backend '{backend}' runs: {missing_backend(backend)}"
    return ""
