"""The README names everything there is, and its examples work."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest
from repoagent_decrypt import register_commands, register_key_providers
from repoagent_decrypt.agent import PARAMETERS

README = (Path(__file__).parent.parent / "README.md").read_text()
PACKAGE = Path(__file__).parent.parent / "repoagent_decrypt"


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_in_the_table(name: str) -> None:
    assert f"\n| `{name}` |" in section("Parameters")


@pytest.mark.parametrize("scheme", ["env", "file", "exec", *register_key_providers()])
def test_every_key_scheme_is_in_the_table(scheme: str) -> None:
    assert f"\n| `{scheme}:" in section("Where keys are")


def test_every_variable_that_is_read_is_named() -> None:
    source = "".join(path.read_text() for path in (PACKAGE / "providers").glob("*.py"))
    variables = set(re.findall(r'"((?:REPOAGENT|VAULT)_[A-Z_]+)"', source)) - {"REPOAGENT_STARTED_BY"}  # only passed on
    assert variables >= {"REPOAGENT_KBS_URL", "VAULT_ADDR", "VAULT_TOKEN"}
    assert [name for name in variables if name not in section("Where keys are")] == []


@pytest.mark.parametrize("name", list(register_commands()))
def test_every_option_of_every_command_is_named(name: str) -> None:
    module, _, attribute = register_commands()[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    text = section("Command line") + section("From key to served model")
    assert f"`repoagent {name}" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for option in parameter.opts), parameter.opts


def test_the_example_of_the_library_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"weights")
    code = re.findall(r"```python\n(.*?)```", section("The age library"), re.DOTALL)[0]
    exec(code, {})
    assert (tmp_path / "again.onnx").read_bytes() == b"weights"


def test_the_vectors_directory_says_where_they_come_from(read_tree: Callable[[Path], dict[str, bytes]]) -> None:
    vectors = read_tree(Path(__file__).parent / "vectors")
    assert b"cctv-age` 0.2.0" in vectors["ORIGIN.md"]
    assert b"Zero-Clause BSD" in vectors["LICENSE"]
