"""The environment of programs that the server starts: its own, without what is secret in it."""

import os
import threading
from collections.abc import Mapping
from typing import Final

from repoagent.sentinel import mark

__all__ = ["child_environment", "mark_secret", "without_secrets"]

_OWN_PREFIX: Final = "REPOAGENT_"
"""Settings of this program: flags given as variables, some of which are secrets."""

_NEVER_KEYS: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD", "PYTHONHOME"}
    | {"PYTHONPATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
"""Without these programs do not run; a model that names one as its key must not take it from the others."""

_lock: Final = threading.Lock()
_secret: Final[set[str]] = set()


def mark_secret(name: str) -> None:
    """From now on no program that the server starts inherits the variable ``name``."""
    if name not in _NEVER_KEYS and not name.startswith("LC_"):
        with _lock:
            _secret.add(name)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without variables of this program and without those that held a key.

    What is started with it ends with the server, see :mod:`repoagent.sentinel`.
    """
    with _lock:
        hidden = frozenset(_secret)
    kept = {
        name: value for name, value in environment.items() if name not in hidden and not name.startswith(_OWN_PREFIX)
    }
    return kept | mark()


def child_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program inherits from the server now, and ``added``, which its caller chose."""
    return without_secrets(os.environ) | dict(added or {})
