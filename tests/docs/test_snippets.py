"""The configurations and programs that pages show are read by what reads them: a server, a parser, Python.

What a snippet leaves out with ``...`` stays left out; all else in it must be right.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import repoagent_convert.plugin
import repoagent_llm.plugin
import yaml
from click.testing import CliRunner
from repoagent_server.access.access_file_reader import read_rules
from repoagent_server.access.tokens import KeySet
from repoagent_server.program.serve_command import serve

from repoagent.config import ModelConfig, agent_entries, read_text
from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.loader.policy import read_policy
from tests.docs.conftest import AGENTS, parameters_of

KINDS: Final = {"console", "ini", "json", "pbtxt", "python", "sh", "text", "toml", "yaml"}


def _blocks(pages: dict[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """The page and the text of every block of that kind."""
    for name, page in pages.items():
        yield from ((name, block.body) for block in page.blocks() if block.kind == kind)


def test_every_block_has_a_kind_that_is_looked_at(pages: dict[str, Any]) -> None:
    found = {(name, block.kind) for name, page in pages.items() for block in page.blocks()}
    assert {(name, kind) for name, kind in found if kind not in KINDS} == set()


def test_every_model_configuration_can_be_read_and_its_agents_know_their_parameters(pages: dict[str, Any]) -> None:
    """U1: of every page."""
    shown = list(_blocks(pages, "pbtxt"))
    assert len(shown) > 12
    for page, text in shown:
        for entry in agent_entries(_config(text)):
            if entry.name in AGENTS:
                _check_parameters(entry.name, [(key, value) for key, value in entry.parameters], page)


def _config(text: str) -> ModelConfig:
    """A whole configuration, or the parameters of an agent, which stand alone on a page of that agent."""
    if "string_value" not in text and text.startswith("parameters"):
        return read_text(f'model_repository_agents {{ agents [ {{ name: "-" {text} }} ] }}')
    return read_text(text)


def _check_parameters(agent: str, parameters: list[tuple[str, str]], page: str) -> None:
    known = set(parameters_of(agent))
    if agent == "convert":
        known.update(
            *(
                pkgutil.resolve_name(name).options
                for converters in (
                    BUILT_IN_CONVERTERS,
                    repoagent_convert.plugin.register_converters(),
                    repoagent_llm.plugin.register_converters(),
                )
                for name in converters.values()
            )
        )
    assert [key for key, _ in parameters if key not in known and ":" not in key] == [], f"{page}: {agent}"


def test_every_policy_and_access_file_can_be_read(pages: dict[str, Any], tmp_path: Path) -> None:
    read = 0
    for page, text in _blocks(pages, "toml"):
        document = tomllib.loads(text)
        file = tmp_path / "shown.toml"
        text = text.replace('record_sha256 = "..."', f'record_sha256 = "{"0" * 64}"')
        whole = text if "before" not in document else f'[[rule]]\nmodels = ["m"]\n{text}'
        file.write_text(
            re.sub(r'"/etc/repoagent/|(?<== )"(?=[\w-]+\.(?:pem|sums|SHA256SUMS)")', f'"{tmp_path}/', whole)
        )
        for name in re.findall(rf'"{re.escape(str(tmp_path))}/([^"]+)"', file.read_text()):
            (tmp_path / name).write_bytes(b"")
        if {"rule", "before"} & set(document):
            policy = read_policy(file)
            for demand in (demand for rule in policy.rules for demand in rule.demanded if demand.name in AGENTS):
                _check_parameters(demand.name, list(demand.parameters), page)
        elif {"clients", "issuers"} & set(document):
            read_rules(file.read_bytes(), file, lambda issuer: KeySet())
        elif {"model-repository", "limits"} & set(document):
            _check_flags(["--config-file", str(file)])
        else:
            assert "project" in document, f"{page}: nothing reads this: {text}"
        read += 1
    assert read > 12


def test_every_list_of_flags_is_taken_by_the_server(pages: dict[str, Any]) -> None:
    shown = [line for _, text in _blocks(pages, "text") for line in text.splitlines() if line.startswith("--")]
    assert len(shown) > 2
    for line in shown:
        _check_flags(shlex.split(line))


def _check_flags(arguments: list[str]) -> None:
    with CliRunner().isolation():
        serve.make_context("serve", ["--model-repository", "models", *arguments])


def test_every_json_and_yaml_can_be_read(pages: dict[str, Any]) -> None:
    for _, text in _blocks(pages, "json"):
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    for _, text in _blocks(pages, "yaml"):
        assert isinstance(yaml.safe_load(text), dict)


def test_every_python_program_imports_what_there_is_and_calls_it_with_known_arguments(pages: dict[str, Any]) -> None:
    shown = list(_blocks(pages, "python"))
    assert len(shown) > 25
    for page, text in shown:
        tree = ast.parse(text)
        names = dict(_imported(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            target = _resolved(call.func, names)
            keywords = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            assert target is None or not _unknown(target, keywords), f"{page}: {ast.unparse(call)}"


_ONLY_FOR_TRAINING = {
    "catboost",
    "joblib",
    "keras",
    "lightgbm",
    "mlflow",
    "sklearn",
    "skops",
    "tensorflow",
    "torch",
    "xgboost",
}
"""What trains and writes models, and no test needs."""


def _imported(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Name -> what a page's program imports as it, but for the packages that the page has the reader make."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _ONLY_FOR_TRAINING:
                    continue
                module = importlib.import_module(alias.name)
                yield alias.asname or alias.name.split(".")[0], module
        elif isinstance(node, ast.ImportFrom) and node.module != "repoagent_agent_digest":
            if str(node.module).partition(".")[0] in _ONLY_FOR_TRAINING:
                continue
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                yield alias.asname or alias.name, getattr(module, alias.name)


def _resolved(function: ast.expr, names: dict[str, Any]) -> Any:
    """What is called, if it is imported or an attribute of that."""
    if isinstance(function, ast.Attribute):
        owner = _resolved(function.value, names)
        return None if owner is None else getattr(owner, function.attr)
    return names.get(function.id) if isinstance(function, ast.Name) else None


def _unknown(function: Any, keywords: set[str]) -> set[str]:
    """Those of ``keywords`` that ``function`` does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # it is written in C
        return set()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return set() if takes_any else keywords - {parameter.name for parameter in parameters}
