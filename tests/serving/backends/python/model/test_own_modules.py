"""What a model.py can import, and what it gets."""

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from repoagent.serving.backends.python.model.model_module import OwnModules

EXECUTE = """
class TritonPythonModel:
    def initialize(self, args):
        self.early = early()
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={"early": self.early, "late": late()})]
"""


def seen(model: Any) -> Mapping[str, Any]:
    (answers,) = model.ask([1.0])
    assert answers.responses[0].error is None, answers.responses[0].error
    found: Mapping[str, Any] = answers.responses[0].parameters
    return found


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import helper; return helper.WHO",
        "from helper import WHO; return WHO",
        "from .helper import WHO; return WHO",
        "import parts.one; return parts.one.WHO",
        "from parts import one; return one.WHO",
        "from parts.one import whose; return whose()",
        "import above; return above.WHO",
        "import helper; return helper.later()",
    ],
)
def test_files_beside_a_model_can_be_imported_at_any_time_and_belong_to_it(
    run_anywhere: Any, tmp_path: Path, statement: str
) -> None:
    functions = f"def early():\n    {statement}\ndef late():\n    {statement}\n"
    found = {}
    before = set(sys.modules)
    models = []
    names = ("a", "b") if run_anywhere.keywords["execution"] == "in-process" else ("a",)  # processes share no modules
    for name in names:
        who = f"WHO = {name!r}\ndef whose():\n    return WHO\n"
        later = "def later():\n    import parts.one\n    return parts.one.WHO\n"
        write(tmp_path / name / "1", helper=who + later, parts__in____init__="", parts__in__one=who)
        write(tmp_path / name, above=who)
        models.append(run_anywhere(functions + EXECUTE, name=name))
        found[name] = seen(models[-1])
    assert found == {name: {"early": name, "late": name} for name in names}
    for model in models:
        model.close()
    assert not {name for name in set(sys.modules) - before if name.startswith("_repoagent_python_model_")}
    assert not sys.modules.keys() & {"helper", "parts", "above"}


def test_what_is_installed_comes_before_a_file_of_that_name(run_anywhere: Any, tmp_path: Path) -> None:
    write(tmp_path / "m" / "1", json="raise RuntimeError", wave="raise RuntimeError")
    functions = """
def early():
    import json
    return json.dumps(1)
def late():
    import wave
    return wave.__name__
"""
    assert seen(run_anywhere(functions + EXECUTE)) == {"early": "1", "late": "wave"}


def test_a_directory_of_data_with_the_name_of_a_library_is_not_taken_for_it(run_anywhere: Any, tmp_path: Path) -> None:
    (tmp_path / "m" / "1" / "wave").mkdir(parents=True)
    functions = "def early():\n    import wave\n    return bool(wave.__file__)\nlate = early\n"
    assert seen(run_anywhere(functions + EXECUTE)) == {"early": True, "late": True}


def test_a_model_finds_itself_also_where_a_directory_outside_has_its_name(
    run_anywhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server's working directory may have one: for an interpreter a file comes before such a directory."""
    (tmp_path / "outside" / "model").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    functions = "VALUE = 3\ndef early():\n    import model\n    return model.VALUE\nlate = early\n"
    assert seen(run_anywhere(functions + EXECUTE)) == {"early": 3, "late": 3}


def test_an_import_that_needs_a_process_of_its_own_names_it(run_anywhere: Any) -> None:
    """P22: difference 31."""
    model = run_anywhere("""
class TritonPythonModel:
    def execute(self, requests):
        import importlib
        raise ValueError(importlib.import_module("model").__name__)
""")
    error = model.error()
    assert "ValueError: model" in error or "own files find it: set EXECUTION to 'process'" in error


def test_the_utilities_know_their_model_wherever_they_are_imported(
    run_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = "import triton_python_backend_utils as pb_utils\ndef directory():\n    return pb_utils.get_model_dir()\n"
    write(tmp_path, repoagent_test_library=library)
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = """
def early():
    import repoagent_test_library
    return repoagent_test_library.directory()
def late():
    import triton_python_backend_utils as utils
    return utils.get_model_dir()
"""
    models = {name: run_model(functions + EXECUTE, name=name) for name in ("a", "b")}
    del sys.modules["repoagent_test_library"]
    for name, model in models.items():
        assert seen(model) == dict.fromkeys(("early", "late"), str(tmp_path / name / "1"))


def test_what_was_pickled_with_classes_of_such_a_file_is_read_in_a_process_of_its_own(
    run_in_process_of_its_own: Any, tmp_path: Path
) -> None:
    write(tmp_path / "m" / "1", layers="class Layer:\n    def __init__(self, size):\n        self.size = size\n")
    functions = """
def early():
    import layers, pickle
    return pickle.loads(pickle.dumps(layers.Layer(7))).size
late = early
"""
    assert seen(run_in_process_of_its_own(functions + EXECUTE)) == {"early": 7, "late": 7}


def test_a_module_that_is_nowhere_is_told_by_its_own_name(run_anywhere: Any) -> None:
    functions = """
def early():
    try:
        import nosuchmodule
    except ModuleNotFoundError as error:
        return str(error)
late = early
"""
    assert json.dumps(seen(run_anywhere(functions + EXECUTE))).count("No module named 'nosuchmodule'") == 2


def test_modules_are_forgotten_while_others_are_imported() -> None:
    stop, interval = threading.Event(), sys.getswitchinterval()

    def import_others() -> None:
        while not stop.is_set():
            names = [f"{__name__}.other{number}" for number in range(20)]
            sys.modules.update({name: ModuleType(name) for name in names})
            for name in names:
                del sys.modules[name]

    thread = threading.Thread(target=import_others)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(100):
            OwnModules("_repoagent_test_package", [], {}, names=False).close()
    finally:
        stop.set()
        thread.join(60)
        sys.setswitchinterval(interval)
