"""Real plans for tests: built once per run of the tests, whichever process asks first."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from repoagent.api import ConversionSource, Product
from repoagent.beneath.digests import digest_files
from repoagent.config import read_text
from repoagent.converters.onnx.tensorrt import TensorRtConverter
from repoagent.engines.flavours import installed, not_installed
from repoagent.loader.conversion import cache_key
from repoagent.loader.converting.build_process import build_in_child
from repoagent.loader.converting.messages import BuildOrder
from repoagent.loader.converting.registry import option_values
from repoagent.storage.cache.cache import Cache

MUST_RUN: Final = "REPOAGENT_TESTS_NEED_TENSORRT"
"""The environment variable that makes a failure of what is skipped where there is no TensorRT."""
_PAIR: Final = ("onnx", "tensorrt")

BuildPlan = Callable[..., "BuiltPlan"]


def need_tensorrt() -> None:
    """Skip the test where no plan can be built; fail it where it has to run."""
    if installed():
        return
    if os.environ.get(MUST_RUN, "") not in ("", "0"):
        pytest.fail(f"{MUST_RUN} is set, but {not_installed()}")
    pytest.skip(not_installed())


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A plan, and what its build reported."""

    path: Path
    product: Product

    @property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @property
    def tensors(self) -> dict[str, Mapping[str, Any]]:
        return {one["name"]: one for one in self.product.annotations["tensors"]}


class PlanShelf:
    """Builds plans in processes of their own, and keeps them in ``directory``, which processes may share."""

    def __init__(self, directory: Path) -> None:
        self._cache = Cache(directory)
        self._converter = TensorRtConverter()

    def __call__(self, model: Path, config: str = "", **options: str) -> BuiltPlan:
        """The plan of the ONNX file ``model``.

        Raises:
            RepoAgentError: it cannot be built.
        """
        source = ConversionSource(model.parent, model.name, f"1/{model.name}", read_text(config))
        plan = self._converter.plan(source, option_values(self._converter, options))
        found = digest_files(source.directory, dict.fromkeys(plan.inputs, ("sha256",)))
        digests = {name: one["sha256"] for name, one in found.items()}
        key = cache_key(_PAIR, self._converter.version, plan, digests)

        def build(directory: Path) -> None:
            scratch = directory.parent / "scratch"
            scratch.mkdir()
            order = BuildOrder(
                "repoagent.converters.onnx.tensorrt:TensorRtConverter",
                str(source.directory),
                str(directory),
                dict(plan.settings),
                confidential=False,
            )
            product = build_in_child(order, scratch, "the converter", progress=_ignore, cancelled=_never)
            (directory / "product.json").write_text(json.dumps([dict(product.annotations), product.notes]))

        kept = self._cache.get_or_build(key, build)
        annotations, notes = json.loads((kept / "product.json").read_text())
        return BuiltPlan(kept / plan.output, Product(annotations, tuple(notes)))

    def close(self) -> None:
        self._cache.close()


def _ignore(done: int, total: int | None, what: str) -> None:
    """Nobody looks."""


def _never() -> bool:
    return False
