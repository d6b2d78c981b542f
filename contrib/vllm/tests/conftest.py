"""Classes like those of vLLM that the plug-in uses, in the place of vLLM."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.conftest import folder, memory

__all__ = ["folder", "memory", "registry"]


@dataclass
class LoRARequest:
    """As ``vllm.lora.request.LoRARequest``."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class LoRAResolver:
    """As ``vllm.lora.resolver.LoRAResolver``, whose one method is abstract there."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The resolvers that were registered; the modules of vLLM and the plug-in are there for one test."""
    found: dict[str, Any] = {}
    request, resolver = ModuleType("vllm.lora.request"), ModuleType("vllm.lora.resolver")
    registry = type("LoRAResolverRegistry", (), {"register_resolver": staticmethod(found.__setitem__)})
    vars(request).update(LoRARequest=LoRARequest)
    vars(resolver).update(LoRAResolver=LoRAResolver, LoRAResolverRegistry=registry)
    for name, module in [("vllm", ModuleType("vllm")), ("vllm.lora", ModuleType("vllm.lora"))]:
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, request.__name__, request)
    monkeypatch.setitem(sys.modules, resolver.__name__, resolver)
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    yield found
    for one in found.values():
        one.close()
    for name in [name for name in sys.modules if name.startswith("repoagent_vllm")]:
        del sys.modules[name]
