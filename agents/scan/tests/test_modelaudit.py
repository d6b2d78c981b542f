"""modelaudit in a child: the real one where it is installed, and otherwise a program that answers in its form."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_scan import agent

from agents.scan.tests.making_models import onnx_model
from repoagent.testing import Outcome

Scan = Callable[..., Outcome]
GOOD = {"1/model.onnx": onnx_model().SerializeToString()}
WITH_PICKLE = {**GOOD, "1/w.pkl": pickle.dumps(eval)}
ALLOWED = ("allow", "pickle")

PROGRAM = """
import json, os, sys, time

def main():
    report, root = sys.argv[sys.argv.index("--output") + 1], sys.argv[-1]
    {body}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``modelaudit`` that the child finds first."""
    package = tmp_path / "packages" / "modelaudit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package / "cli.py"


def answering(*issues: dict[str, str], status: int = 0) -> str:
    text = json.dumps({"issues": list(issues)})
    return PROGRAM.format(body=f"open(report, 'w').write({text!r}); sys.exit({status})")


CRITICAL = {"severity": "critical", "message": "calls eval", "location": "1/w.pkl (pos 3)"}


def test_what_it_finds_critical_refuses_the_model(load: Scan, program: Path) -> None:
    program.write_text(answering(CRITICAL, status=1))
    outcome = load(WITH_PICKLE, ALLOWED)
    assert not outcome.loaded
    assert "1/w.pkl: modelaudit: calls eval" in str(outcome.error)


def test_a_directory_beside_the_server_is_not_run_in_the_childs_place(
    load: Scan, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators start servers in a directory of models, and a model may be named as the scanner's package."""
    planted = tmp_path / "models" / "repoagent_scan"
    planted.mkdir(parents=True)
    (planted / "__init__.py").touch()
    (planted / "modelaudit_child.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(planted.parent)
    program.write_text(answering())
    assert load(WITH_PICKLE, ALLOWED).loaded
    assert not (tmp_path / "ran").exists()


def test_its_warnings_do_not(load: Scan, program: Path) -> None:
    program.write_text(answering({**CRITICAL, "severity": "warning"}, status=1))
    outcome = load(WITH_PICKLE, ALLOWED)
    assert outcome.loaded
    assert outcome.report.entries[0].actions[0].notes[-1].endswith("modelaudit found nothing critical")


@pytest.mark.parametrize(
    "source",
    [
        answering(status=2),
        PROGRAM.format(body="pass"),
        PROGRAM.format(body="open(report, 'w').write('[]')"),
        PROGRAM.format(body="os.abort()"),
        PROGRAM.format(body="bytearray(1 << 40)"),
    ],
    ids=["failed", "no report", "another report", "crashed", "out of memory"],
)
def test_a_scan_that_does_not_end_well_refuses_the_model(load: Scan, program: Path, source: str) -> None:
    program.write_text(source)
    assert not load(GOOD).loaded


def test_a_scan_that_takes_too_long_is_killed(load: Scan, program: Path) -> None:
    program.write_text(PROGRAM.format(body="time.sleep(600)"))
    outcome = load(GOOD, ("timeout", "0.5"))
    assert not outcome.loaded
    assert "0.5" in str(outcome.error)


def test_it_gets_no_home_and_no_telemetry(load: Scan, program: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    keep = f"json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    program.write_text(PROGRAM.format(body=f"{keep}; json.dump(dict(issues=[]), open(report, 'w'))"))
    assert load(GOOD).loaded
    environment = json.loads(seen.read_text())
    assert environment["PROMPTFOO_DISABLE_TELEMETRY"] == "1"
    assert "repoagent-scan-" in environment["HOME"]
    assert not Path(environment["HOME"]).exists()


def test_where_it_is_required_and_missing_the_model_is_refused(load: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "has_modelaudit", lambda: False)
    outcome = load(GOOD, ("modelaudit", "required"))
    assert "modelaudit is required and not installed" in str(outcome.error)
    assert load(GOOD).loaded


@pytest.mark.skipif(not agent.has_modelaudit(), reason="modelaudit is not installed: pip install modelaudit")
def test_the_real_one_finds_what_runs_code(load: Scan) -> None:
    assert load(GOOD, ("modelaudit", "required")).loaded
    outcome = load(WITH_PICKLE, ALLOWED)
    assert not outcome.loaded
    assert "1/w.pkl: modelaudit: " in str(outcome.error)
