"""Hostile ``.pt2`` files: what is planted runs, and changes nothing outside of the jail; without it, it does.

They need torch: ``make models`` installs it and runs this.
"""

import io
import re
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repoagent_convert.networks.pt2 import Pt2Converter

from repoagent.beneath import jail
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.testing import AgentHarness
from tests.loader.converting.test_environments import BEFORE, HOSTILE, Hostile, state
from tests.loader.converting.test_environments import outside as outside
from tests.loader.converting.test_environments import port as port

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from agents.convert.tests.networks import test_pt2  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}"),
]
AGENTS = 'model_repository_agents {{ agents [ {{ name: "convert" parameters {{ key: "from" value: "{}" }} }} ] }}'


class Free(Pt2Converter):
    """The same without the jail: what a file can do then."""

    runs_code = False


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    settings = ConverterSettings(allow_code=True)
    with AgentHarness(
        tmp_path / "harness", converters={("free", "onnx"): f"{__name__}:Free"}, converter_settings=settings
    ) as harness:
        yield harness


def planted(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """A program, with other bytes in the files of its archive."""
    test_pt2.save(test_pt2.KINDS["MLP"], path.with_suffix(".pt2"))
    with zipfile.ZipFile(path.with_suffix(".pt2")) as source, zipfile.ZipFile(path, "w") as target:
        for one in source.infolist():
            target.writestr(one.filename, change(one.filename, source.read(one)))
    path.with_suffix(".pt2").unlink()


def pickled(code: str) -> bytes:
    file = io.BytesIO()
    torch.save(Hostile(code), file)
    return file.getvalue()


def in_sample(code: str) -> Callable[[str, bytes], bytes]:
    return lambda name, content: pickled(code) if "sample_inputs" in name else content


def in_weights(code: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            return content.replace(b'"use_pickle": false', b'"use_pickle": true').replace(
                b'"use_pickle":false', b'"use_pickle":true'
            )
        return pickled(code) if "/weights/weight_" in name else content

    return change


def run(harness: AgentHarness, root: Path, kind: str, change: Callable[[str, bytes], bytes]) -> Any:
    (root / "1").mkdir(parents=True, exist_ok=True)
    planted(root / "1" / "model", change)
    (root / "config.pbtxt").write_text(AGENTS.format(kind))
    return harness.run(root)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_in_a_program_changes_nothing_outside_and_does_without_the_jail(
    name: str,
    harness: AgentHarness,
    tmp_path: Path,
    outside: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "secret")
    code_place, marks = tmp_path / "code", tmp_path / "marks"
    code_place.mkdir()
    marks.mkdir()
    monkeypatch.syspath_prepend(str(code_place))
    signals: list[int] = []
    former = signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
    attack = HOSTILE[name].replace("{port}", str(port)).replace("{code!r}", repr(str(code_place)))
    attack = re.sub(r"\{(outside|parent)\}", r"{\1}", attack)
    # The last line is reached where the attack was not denied: torch may go on after an error of a sample.
    code = f"{BEFORE.format(outside=str(outside))}{attack}\nPath({str(marks)!r}, 'done').write_text('')"
    plant = in_weights if list(HOSTILE).index(name) % 2 else in_sample
    before = state(outside)
    try:
        run(harness, tmp_path / "jailed", "pt2", plant(code))
        assert state(outside) == before
        assert not list(code_place.iterdir())
        assert not signals
        assert not list(marks.iterdir())
        run(harness, tmp_path / "free", "free", plant(code))
        assert [one.name for one in marks.iterdir()] == ["done"], "the test shows nothing: the attack does not run"
    finally:
        signal.signal(signal.SIGURG, former)


ARCHIVES: dict[str, Callable[[str, bytes], bytes]] = {
    "a graph that is not one": lambda name, content: b"[" * 100_000 if name.endswith("model.json") else content,
    "sizes beyond memory": lambda name, content: content.replace(b'"as_int": 16', b'"as_int": 1099511627776'),
    "weights that are cut off": lambda name, content: content[:5] if "weights/weight_" in name else content,
    "another version": lambda name, content: b"999" if name.endswith("archive_version") else content,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_lies_is_refused_or_answers_rightly(name: str, harness: AgentHarness, tmp_path: Path) -> None:
    outcome = run(harness, tmp_path / "source", "pt2", ARCHIVES[name])
    assert outcome.error is not None or "compared with torch" in " ".join(outcome.report.lines())
    assert outcome.left == ()


def test_names_that_lead_out_of_an_archive_write_nothing_there(harness: AgentHarness, tmp_path: Path) -> None:
    root = tmp_path / "source"
    (root / "1").mkdir(parents=True)
    planted(root / "1" / "model", lambda name, content: content)
    with zipfile.ZipFile(root / "1" / "model", "a") as file:
        file.writestr("../../../../../../outside-of-it", b"x")
        file.writestr("/tmp/outside-of-it", b"x")
    before = sorted(tmp_path.rglob("*outside-of-it"))
    (root / "config.pbtxt").write_text(AGENTS.format("pt2"))
    harness.run(root)
    assert sorted(tmp_path.rglob("*outside-of-it")) == before
    assert not Path("/tmp/outside-of-it").exists()
