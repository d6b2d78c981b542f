"""What importing the package may cost, and what it may not pull in or name (docs/structure.md)."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from repoagent_convert.plugin import register_converters

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HEAVY = ("onnxruntime", "grpc", "tensorrt", "s3fs", "fsspec", "google.protobuf", "numpy")


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_repoagent_pulls_in_nothing_heavy() -> None:
    assert not _modules_after("import repoagent").intersection(HEAVY)


def test_what_an_author_imports_pulls_in_nothing_heavy() -> None:
    assert not _modules_after("import repoagent.api").intersection(HEAVY)


def test_the_command_line_pulls_in_nothing_heavy_before_a_command_runs() -> None:
    assert not _modules_after("import repoagent.cli.main").intersection(HEAVY)


def test_the_server_pulls_in_nothing_of_tensorrt_or_cuda_before_a_model_needs_it() -> None:
    everything = "import repoagent.server, repoagent_llm, repoagent_server, repoagent.serving.backends.tensorrt"
    roots = {name.partition(".")[0].partition("_")[0] for name in _modules_after(everything)}
    assert not roots & {"tensorrt", "cuda"}


def test_a_loader_is_assembled_without_the_serving_core_and_numpy() -> None:
    commands = "from repoagent.cli import check, fetch, loading"
    loader = "from repoagent.loader.assembly import LoaderOptions, open_loader; LoaderOptions()"
    modules = _modules_after(f"{commands}; {loader}")
    assert "repoagent.loader.assembly" in modules
    assert [name for name in modules if name.startswith("repoagent.serving")] == []
    assert not modules.intersection(
        {"numpy", "onnxruntime", "fsspec", "repoagent.server", "cryptography", "ssl", "http.client"}
    )


def test_the_process_of_a_python_model_has_no_storage_and_no_part_of_the_network() -> None:
    modules = _modules_after("import repoagent.serving.backends.python.process.child")
    assert "repoagent.serving.backends.python.process.child" in modules
    assert [
        name for name in modules if name.startswith(("repoagent.storage", "repoagent.loader", "repoagent.api"))
    ] == []
    assert not modules.intersection({"asyncio", "ssl", "http.client", "fsspec", "onnxruntime"})


def _texts_of_the_core() -> Iterator[tuple[str, str]]:
    """Each string literal of ``repoagent``, after the file that it stands in."""
    for path in sorted((ROOT / "repoagent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(ROOT)), node.value


def test_the_core_reaches_no_extension_by_a_string() -> None:
    extensions = [path.parent.name for path in ROOT.glob("*/repoagent_*/__init__.py")]
    extensions += [path.parent.name for path in ROOT.glob("agents/*/repoagent_*/__init__.py")]
    assert {"repoagent_capi", "repoagent_checksum", "repoagent_llm", "repoagent_server"} <= set(extensions)
    named = [(file, text) for file, text in _texts_of_the_core() for name in extensions if name in text]
    assert named == []


def _entries_of_extensions() -> dict[str, set[str]]:
    """The packages besides the core, and the backends and model files that they bring, each with its ways to say it."""
    entries: dict[str, set[str]] = {}
    for path in (*ROOT.glob("*/pyproject.toml"), *ROOT.glob("agents/*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        files = project.get("entry-points", {}).get("repoagent.model_filenames", {})
        entries[project["name"]] = {*files, *(value.partition(":")[0] for value in files.values())}
    return entries


def test_the_core_names_a_backend_or_a_model_file_of_an_extension_only_where_it_states_how_to_install_it() -> None:
    extensions = _entries_of_extensions()
    assert extensions["repoagent-llm"] == {"genai_config.json", "llm"}
    wanted = set().union(*extensions.values()) | {"repoagent-llm"}
    assert {file for file, text in _texts_of_the_core() if text in wanted} == {"repoagent/installing.py"}


def test_the_core_names_a_format_of_another_package_only_where_it_states_how_to_install_it() -> None:
    formats = {source for source, target in register_converters() if target == "onnx"}
    assert len(formats) == 12
    assert {file for file, text in _texts_of_the_core() if text in formats} == {"repoagent/installing.py"}


def test_the_core_names_the_c_part_only_where_it_states_how_to_install_it() -> None:
    files = {file for file, text in _texts_of_the_core() if "repoagent-capi" in text}
    assert files == {"repoagent/cli/main.py", "repoagent/installing.py", "repoagent/loader/agent_directory.py"}
