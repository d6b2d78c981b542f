"""The key providers that plug-ins bring, on top of those that are built in."""

import importlib
from typing import Any

from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.plugins import PluginManager
from repoagent.storage.secrets.keys import KeyProvider, builtin_providers


def key_providers(
    plugins: PluginManager, *, allow_commands: bool = False, limits: Limits = DEFAULT_LIMITS
) -> dict[str, KeyProvider]:
    """URI scheme -> provider. The code of a plug-in's provider is imported when the first key is asked of it.

    Args:
        plugins: Where the providers are registered.
        limits: How large a key in a file may be.
        allow_commands: Whether ``exec:`` references run programs.

    Raises:
        AlreadyExistsError: two claim one scheme.
    """
    targets: dict[str, Any] = plugins.registry(
        "key_providers", built_in=builtin_providers(commands=allow_commands, largest_file=limits.key_file_bytes)
    )
    return {
        scheme: target if callable(target) else _imported_on_first_use(target) for scheme, target in targets.items()
    }


def _imported_on_first_use(target: str) -> KeyProvider:
    module, _, attribute = target.partition(":")

    def provider(uri: str) -> bytes:
        key: bytes = getattr(importlib.import_module(module), attribute)(uri)
        return key

    return provider
