"""The model that a platform's requests mean when they do not name one."""

from collections.abc import Mapping, Sequence
from typing import Any

from repoagent.errors import InvalidArgumentError

__all__ = ["default_model"]


def default_model(name: str, index: Sequence[Mapping[str, Any]], how: str, *, check: bool = True) -> str:
    """``name``, or the only model of ``index``, which lists the versions that are ready.

    Args:
        name: What the operator chose; "" for nothing.
        index: The index of the server, ready versions only.
        how: How the operator names a model, for the message.
        check: Whether a model that was chosen must be ready.

    Raises:
        InvalidArgumentError: there is no such model, or more than one.
    """
    ready = sorted({str(entry["name"]) for entry in index})
    if name:
        if check and name not in ready:
            raise InvalidArgumentError(f"Expect the default model '{name}' is loaded ({how} names it)")
        return name
    if len(ready) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified; "
            f"{len(ready)} are loaded. Name one with {how}"
        )
    return ready[0]
