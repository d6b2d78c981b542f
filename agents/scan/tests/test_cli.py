"""``repoagent scan``."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from repoagent_scan.cli import scan_command

from agents.scan.tests.making_models import onnx_model
from agents.scan.tests.test_detection import skops
from repoagent.cli.main import program

MakeTree = Callable[[Mapping[str, bytes]], Path]


@pytest.fixture
def model(make_tree: MakeTree) -> Path:
    return make_tree({"1/model.onnx": onnx_model().SerializeToString(), "1/w.pkl": pickle.dumps(print)})


def test_findings_are_printed_with_what_accepts_them(model: Path) -> None:
    result = CliRunner().invoke(scan_command, [str(model)])
    assert result.exit_code == 1
    assert "1/w.pkl: pickle: loading a pickle runs the code in it" in result.stderr
    assert '(allow = "pickle" accepts it)' in result.stderr
    assert result.stdout.split() == ["1", "onnx", "1", "pickle"]


def test_what_is_allowed_is_not_found(model: Path) -> None:
    assert CliRunner().invoke(scan_command, [str(model), "--allow", "pickle", "--quiet"]).output == ""
    assert CliRunner().invoke(scan_command, [str(model), "--allow-file", "1/*.pkl"]).exit_code == 0


def test_the_program_has_the_command(model: Path) -> None:
    assert CliRunner().invoke(program, ["scan", str(model), "--quiet"]).exit_code == 1


def test_the_types_in_a_file_of_skops_are_printed(make_tree: MakeTree) -> None:
    result = CliRunner().invoke(scan_command, [str(make_tree({"1/model.skops": skops()}))])
    assert "skops: opening it makes types by name; convert it to ONNX; types: " in result.stderr
    assert "sklearn.linear_model.Ridge" in result.stderr
