"""The name under which a result is kept: a digest of everything that it depends on, and of no path."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from repoagent.api.converters import ConversionPlan, ConversionSource, Progressing
from repoagent.beneath import open_beneath
from repoagent.errors import CancelledError, InternalError

__all__ = ["cache_key", "digest_inputs"]

_BUFFER_BYTES: Final = 1 << 20
_LAYOUT: Final = 1
"""Another one when what lies in the cache beside a result changes, so that an older one is not read."""


def digest_inputs(
    source: ConversionSource, names: tuple[str, ...], progress: Progressing, cancelled: Callable[[], bool]
) -> dict[str, str]:
    """SHA-256 of each of the files, in hexadecimal digits.

    Raises:
        UnsafePathError: a name leads out of the directory, or through a link.
        CancelledError: ``cancelled`` became true.
    """
    return {name: _digest(source, name, progress, cancelled) for name in names}


def _digest(source: ConversionSource, name: str, progress: Progressing, cancelled: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    with open_beneath(source.directory, name, follow=False) as file:
        size = file.seek(0, 2)
        file.seek(0)
        done = 0
        while data := file.read(_BUFFER_BYTES):
            digest.update(data)
            done += len(data)
            progress(done, size, f"reading {name}")
            if cancelled():
                raise CancelledError("the conversion was given up: the load was cancelled")
    return digest.hexdigest()


def cache_key(pair: tuple[str, str], converter_version: str, plan: ConversionPlan, digests: Mapping[str, str]) -> str:
    """A name made of all that the result depends on.

    Raises:
        InternalError: the converter's plan has values that JSON does not have.
    """
    depends_on: dict[str, Any] = {
        "layout": _LAYOUT,
        "formats": pair,
        "converter": converter_version,
        "inputs": dict(digests),
        "output": plan.output,
        "settings": dict(plan.settings),
        "tools": dict(plan.tools),
        "target": plan.target,
    }
    try:
        text = json.dumps(depends_on, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InternalError(
            f"the converter from '{pair[0]}' to '{pair[1]}' made a plan without a key: {error}"
        ) from error
    return f"convert-{hashlib.sha256(text.encode()).hexdigest()}"
