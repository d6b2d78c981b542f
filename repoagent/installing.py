"""How to get a part of this project that is not installed. This module imports nothing of the project."""

from collections.abc import Collection
from typing import Final

_PLACES: Final = {
    "repoagent-core": ".",
    "repoagent-server": "./server_stub",
    "repoagent-capi": "./capi",
    "repoagent-llm": "./llm",
}

_OWNERS: Final = {"llm": "repoagent-llm", "decoder": "repoagent-llm"}
"""Backends, and formats of converters, that packages of this project add."""

_FILES: Final = {"genai_config.json": "llm"}
"""Model files by which such backends are known."""


def install_hint(distribution: str, *extras: str) -> str:
    """What to type to install ``distribution`` of this project, with ``extras``.

    Never its bare name: on a package index that name is not this project's, and may be anybody's.
    """
    place = _PLACES.get(distribution) or f"./agents/{distribution.removeprefix('repoagent-')}"
    target = f"'{place}[{','.join(extras)}]'" if extras else place
    return f"from a checkout: pip install {target}"


def missing_part(name: str) -> str:
    """What a message states of a backend or a format ``name`` that one of this project's packages has; else empty."""
    distribution = _OWNERS.get(name)
    if distribution is None:
        return ""
    return f"it is in the package {distribution}, which is not installed; {install_hint(distribution)}"


def missing_owner(names: Collection[str], known: Collection[str]) -> str:
    """What a message states of a directory whose file only a backend of a missing package knows; else empty.

    ``known`` are the files that the installed backends know.
    """
    for name, backend in _FILES.items():
        if name in names and name not in known:
            return f"{name}, which the backend '{backend}' runs: {missing_part(backend)}"
    return ""
