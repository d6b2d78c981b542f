"""The compiled core of xgrammar, without its Python package, which imports torch and transformers for helpers.

The modules that bind the core need neither. They are imported under a package name of our own, so that a program may
import xgrammar as well, before or after.
"""

import importlib
import sys
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from repoagent.executor.types.errors import UnsupportedFeatureError
from repoagent.installing import install_hint

__all__ = ["INSTALL", "core"]

#: Its requirements name torch, so pip must not follow them.
_ALONE: Final = "pip install --no-deps xgrammar==0.2.8"
INSTALL: Final = f"{_ALONE} and {install_hint('repoagent-core', 'llm', 'xgrammar')}"
_FEATURE: Final = "GuidedDecodingBackend.XGRAMMAR"
_ALIAS: Final = "_repoagent_xgrammar"
_NEEDED: Final = ("TokenizerInfo", "GrammarCompiler", "GrammarMatcher")


@cache
def core() -> Any:
    """The binding; raises ``UnsupportedFeatureError`` when it is not installed or too different."""
    for name in ("xgrammar", "tvm_ffi"):
        if find_spec(name) is None:
            raise UnsupportedFeatureError(_FEATURE, f"{name} is not installed: {INSTALL}")
    spec = find_spec("xgrammar")
    assert spec is not None
    package = ModuleType(_ALIAS)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_ALIAS] = package
    try:
        importlib.import_module(f"{_ALIAS}.load_binding")
        found = importlib.import_module(f"{_ALIAS}.base")._core
        for name in _NEEDED:
            getattr(found, name)
    except Exception as error:  # private modules of another version may fail in any way
        raise UnsupportedFeatureError(_FEATURE, f"this xgrammar cannot be used ({error}): {INSTALL}") from error
    return found
