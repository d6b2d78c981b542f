"""Files of XGBoost and LightGBM, with what these answered when ``make_models.py`` recorded them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_convert.trees.converter import TreeConverter
from repoagent_convert.trees.lightgbm import LightgbmConverter
from repoagent_convert.trees.xgboost import XgboostConverter

from repoagent.api import ConversionJob, ConversionPlan, ConversionSource, Product

STORE = np.load(Path(__file__).with_name("data") / "models.npz")


@dataclass(frozen=True)
class Recorded:
    """A file, and what its library answered to some rows."""

    name: str

    @property
    def content(self) -> bytes:
        return bytes(STORE[f"{self.name}/file"])

    @property
    def rows(self) -> Any:
        return STORE[f"{self.name}/rows"]

    @property
    def answers(self) -> Any:
        return STORE[f"{self.name}/answers"]

    @property
    def library(self) -> str:
        return str(STORE[f"{self.name}/library"])

    @property
    def converter(self) -> TreeConverter:
        return XgboostConverter() if self.name.startswith("xgb") else LightgbmConverter()


@dataclass(frozen=True)
class Built:
    """The result of one conversion."""

    plan: ConversionPlan
    product: Product
    content: bytes


Build = Callable[..., Built]


@pytest.fixture
def recorded() -> Callable[[str], Recorded]:
    return Recorded


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build(converter, content, **options)``: what the converter makes of a file, in this process."""

    def build(converter: TreeConverter, content: bytes, **options: str) -> Built:
        source, target = tmp_path / "source", tmp_path / "target"
        source.mkdir(exist_ok=True)
        target.mkdir(exist_ok=True)
        (source / "a model").write_bytes(content)
        defaults = {name: one.default for name, one in converter.options.items() if one.default is not None}
        plan = converter.plan(ConversionSource(source, "a model", "1/a model"), {**defaults, **options})
        product = converter.build(ConversionJob(source, target, plan.settings))
        return Built(plan, product, (target / plan.output).read_bytes())

    return build
