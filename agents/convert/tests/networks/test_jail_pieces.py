"""Pieces of the jail switched off one by one, for code in each kind of network (``make models``).

One file tries what each piece denies. Without Landlock it can report what succeeded: that is what the piece denies
that is missing too, and nothing else.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.beneath import jail
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.testing import AgentHarness
from tests.loader.converting.test_environments import outside as outside

from .conftest import MADE, needs_models
from .pieces import ATTACKS, attack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}"),
]
AGENTS = 'model_repository_agents {{ agents [ {{ name: "convert" parameters {{ key: "from" value: "{}" }} }} ] }}'


def of_torch(version: Path, outside: Path) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from agents.convert.tests.networks.test_hostile_pt2 import in_sample, planted

    planted(version / "model", in_sample(attack(outside)))
    return outside


def made(name: str) -> Callable[[Path, Path], Path]:
    """What ``make_models.py`` wrote, which has its own place outside."""

    def of_tensorflow(version: Path, _: Path) -> Path:
        shutil.copytree(MADE / "networks/hostile" / name, version, dirs_exist_ok=True)
        return MADE / "networks/outside"

    return of_tensorflow


MODELS: dict[str, Callable[[Path, Path], Path]] = {
    "pt2": of_torch,
    "keras": made("lambda that tries all"),
    "savedmodel": made("function that tries all"),
}


@pytest.mark.parametrize("piece", ["", *ATTACKS])
@pytest.mark.parametrize("kind", ["pt2", *(pytest.param(kind, marks=needs_models) for kind in ("keras", "savedmodel"))])
def test_what_a_piece_denies_succeeds_without_it_alone(kind: str, piece: str, tmp_path: Path, outside: Path) -> None:
    if piece == "capabilities" and os.geteuid():
        pytest.skip("only root has capabilities")
    name, source = f"{kind}_{piece}", tmp_path / "source"
    (source / "1").mkdir(parents=True)
    (source / "config.pbtxt").write_text(AGENTS.format(name))
    outside = MODELS[kind](source / "1", outside)
    shutil.rmtree(outside / "done", ignore_errors=True)
    (outside / "done").mkdir()
    environments = {} if kind == "pt2" else {name: MADE / "tensorflow"}
    settings = ConverterSettings(environments, allow_code=True)
    converters = {(name, "onnx"): f"{__package__}.pieces:{name}"}
    with AgentHarness(tmp_path / "harness", converters=converters, converter_settings=settings) as harness:
        harness.run(source)
    assert {*os.listdir(outside / "done")} == ({"files", piece} if piece else set())
    shutil.rmtree(outside / "done")
