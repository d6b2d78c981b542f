"""How to get a part of this project that is not installed. This module imports nothing of the project."""

from typing import Final

__all__ = ["install_hint"]

_PLACES: Final = {
    "repoagent-core": ".",
    "repoagent-server": "./server_stub",
    "repoagent-capi": "./capi",
    "repoagent-llm": "./llm",
}


def install_hint(distribution: str, *extras: str) -> str:
    """What to type to install ``distribution`` of this project, with ``extras``.

    Never its bare name: on a package index that name is not this project's, and may be anybody's.
    """
    place = _PLACES.get(distribution) or f"./agents/{distribution.removeprefix('repoagent-')}"
    target = f"'{place}[{','.join(extras)}]'" if extras else place
    return f"from a checkout: pip install {target}"
