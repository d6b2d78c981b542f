"""What the agent refuses and accepts, through a real load."""

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from onnx import helper

from agents.scan.tests.making_models import onnx_model, safetensors, with_external_data
from repoagent.testing import AgentHarness, Outcome

MakeTree = Callable[[Mapping[str, bytes]], Path]
Scan = Callable[..., Outcome]

OFF = ("modelaudit", "off")
GOOD = {"1/model.onnx": onnx_model().SerializeToString(), "labels.txt": b"cat\ndog\n"}


def refusal(load: Scan, files: dict[str, bytes], *parameters: tuple[str, str]) -> str:
    outcome = load(files, OFF, *parameters)
    assert not outcome.loaded
    return str(outcome.error)


def test_a_model_of_known_formats_loads_and_the_report_counts_them(load: Scan) -> None:
    outcome = load({**GOOD, "1/model.safetensors": safetensors()}, OFF)
    assert outcome.loaded
    assert outcome.report.entries[0].actions[0].notes[-1] == "1 onnx, 1 safetensors, 2 text; modelaudit did not look"


@pytest.mark.parametrize(
    ("name", "content", "format_"),
    [("1/model.pt", pickle.dumps(print), "pickle"), ("1/model.py", b"pass\n", "python"), ("1/x", b"\0\1\2", "unknown")],
)
def test_other_formats_are_refused_by_name_and_accepted_if_allowed(
    load: Scan, name: str, content: bytes, format_: str
) -> None:
    text = refusal(load, {**GOOD, name: content})
    assert f"{name}: {format_}: " in text
    assert f'(the operator accepts this with allow = "{format_}")' in text
    assert load({**GOOD, name: content}, OFF, ("allow", format_)).loaded
    assert load({**GOOD, name: content}, OFF, ("allow_file", "1/*")).loaded


def test_custom_operators_are_refused_by_name_and_accepted_if_allowed(load: Scan) -> None:
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.vendor")
    files = {"1/model.onnx": onnx_model(node).SerializeToString()}
    assert "1/model.onnx: operators that ONNX Runtime runs from elsewhere: com.vendor::FastGelu" in refusal(load, files)
    assert load(files, OFF, ("allow_operator", "com.vendor")).loaded


def test_external_data_inside_the_model_is_accepted_as_such(load: Scan) -> None:
    assert load({"1/model.onnx": with_external_data("w.bin"), "1/w.bin": bytes(range(16))}, OFF).loaded
    assert "1/other.bin: unknown" in refusal(
        load, {"1/model.onnx": with_external_data("w.bin"), "1/other.bin": bytes(range(16))}
    )


@pytest.mark.parametrize("location", ["/etc/passwd", "../../x", "../../model/../x", "../.."])
def test_external_data_outside_of_the_model_is_refused(load: Scan, location: str) -> None:
    assert "external data outside of the model" in refusal(load, {"1/model.onnx": with_external_data(location)})


def test_python_that_an_onnx_model_names_as_its_data_is_still_python(load: Scan) -> None:
    files = {"1/model.onnx": with_external_data("model.py"), "1/model.py": b"import os\n"}
    assert "1/model.py: python" in refusal(load, files)


def test_links_are_refused(harness: AgentHarness, make_tree: MakeTree) -> None:
    root = make_tree({**GOOD, "config.pbtxt": b"model_repository_agents { agents [ { name: 'scan' } ] }"})
    os.symlink("model.onnx", root / "1" / "second.onnx")
    outcome = harness.run(root)
    assert not outcome.loaded


def test_many_findings_are_counted(load: Scan) -> None:
    text = refusal(load, {f"1/{number}.py": b"pass\n" for number in range(9)})
    assert "and 4 more" in text


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (("allow", "onnx"), "expected one of archive"),
        (("alow", "pickle"), "did you mean 'allow'"),
        (("modelaudit", "yes"), "expected one of auto, required, off"),
        (("timeout", "nan"), "expected seconds"),
    ],
)
def test_wrong_parameters_are_named(load: Scan, parameter: tuple[str, str], message: str) -> None:
    outcome = load(GOOD, parameter)
    assert not outcome.loaded
    assert message in str(outcome.error)


def test_an_example_of_every_refusal_stands_in_the_readme() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for parameter in ("allow", "allow_file", "allow_operator", "modelaudit", "timeout"):
        assert f"| `{parameter}` |" in text
