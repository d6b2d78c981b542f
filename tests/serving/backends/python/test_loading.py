"""Importing model.py, completing its configuration, initialising and finalising it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.backends.python.backend import PythonBackend

EMPTY = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def test_initialize_gets_the_configuration_and_where_the_model_lies(run_anywhere: Any) -> None:
    model = run_anywhere("""
import json
class TritonPythonModel:
    def initialize(self, args):
        self.args = args | {"directory": pb_utils.get_model_dir()}
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters=self.args)]
""")
    seen = model.ask([1.0])[0].responses[0].parameters
    assert seen["model_name"] == "m"
    assert seen["model_version"] == "1"
    assert seen["model_instance_name"] == "m_0_0"
    assert seen["model_instance_kind"] == "CPU"
    assert json.loads(seen["model_config"])["max_batch_size"] == 8
    assert Path(seen["directory"]) == Path(seen["model_repository"], "1")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("def (", "SyntaxError"),
        ("import nosuchmodule", "No module named 'nosuchmodule'"),
        ("x = 1", "must define a class TritonPythonModel"),
        ("class TritonPythonModel: pass", "has no execute"),
        (
            "class TritonPythonModel:\n  def initialize(self, args):\n    raise RuntimeError('no such luck')",
            "RuntimeError: no such luck",
        ),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
    ],
)
def test_a_model_that_cannot_start_says_why(run_model: Any, body: str, text: str) -> None:
    before = set(sys.modules)
    with pytest.raises(InternalError) as raised:
        run_model(body)
    assert text in str(raised.value)
    assert not {name for name in set(sys.modules) - before if name.startswith("_repoagent_python_model_")}


def test_a_version_without_a_model_file_is_refused(tmp_path: Path, run_model: Any) -> None:
    run_model(EMPTY)
    with pytest.raises(InvalidArgumentError, match=r"there is no 1/other\.py"):
        run_model(EMPTY, 'name: "m" backend: "python" default_model_filename: "other.py"')


def test_a_version_without_a_model_file_is_not_completed(complete_anywhere: Callable[..., ModelConfig]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^there is no 1/other\.py in model 'm'$"):
        complete_anywhere(EMPTY, 'name: "m" default_model_filename: "other.py"')


def test_models_with_helpers_of_the_same_name_do_not_meet(run_model: Any, tmp_path: Path) -> None:
    body = """
import helper
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(parameters={"who": helper.WHO})]
"""
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "helper.py").write_text(f"WHO = {name!r}\n")
    seen = [run_model(body, name=name).ask([1.0])[0].responses[0].parameters["who"] for name in ("a", "b")]
    assert seen == ["a", "b"]
    assert "helper" not in sys.modules


def test_nothing_is_written_into_the_repository(run_anywhere: Any, tmp_path: Path) -> None:
    run_anywhere(EMPTY)
    assert sorted(path.name for path in (tmp_path / "m" / "1").iterdir()) == ["model.py"]


def test_each_instance_has_modules_of_its_own(run_model: Any) -> None:
    body = "counter = []\n" + EMPTY
    first, second = (run_model(body).instance._model for _ in range(2))
    assert type(first) is not type(second)


@pytest.mark.slow
def test_an_error_of_finalize_is_only_logged(run_anywhere: Any, caplog: pytest.LogCaptureFixture) -> None:
    run_anywhere(EMPTY + "    def finalize(self):\n        raise RuntimeError('cannot let go')\n").close()
    assert "cannot let go" in caplog.text


@pytest.mark.slow
def test_finalize_runs_at_the_end_and_only_then(run_anywhere: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = run_anywhere(EMPTY + "    def finalize(self):\n        pb_utils.Logger.log_error('finalized')\n")
    assert "finalized" not in caplog.text
    model.close()
    assert caplog.text.count("finalized") == 1


def test_auto_complete_config_fills_in_what_is_missing(complete_anywhere: Callable[..., ModelConfig]) -> None:
    config = complete_anywhere("""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [3], "optional": True})
        config.add_output({"name": "y", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_dynamic_batching()
        config.as_dict()["dynamic_batching"]["priority_levels"] = 20
        config.set_model_transaction_policy({"decoupled": True})
        return config
    def execute(self, requests):
        return []
""")
    assert config.max_batch_size == 4
    assert list(config.input[0].dims) == [3]
    assert config.input[0].optional
    assert config.dynamic_batching.priority_levels == 20
    assert config.model_transaction_policy.decoupled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("set_max_batch_size(2)", "configuration specified max_batch_size 8, but in auto-complete-config"),
        (
            'add_input({"name": "x", "data_type": "TYPE_INT32", "dims": [1]})',
            "configuration expects datatype TYPE_FP32",
        ),
        ('add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [2]})', "the model expects dims [2] but"),
        (
            'add_input({"name": "n", "dims": [2]})',
            "input 'n' in auto-complete-config function for model 'm' is missing 'data_type'",
        ),
        ('add_input({"dims": [2]})', "is missing 'name' property"),
        (
            'add_output({"name": "n", "data_type": "TYPE_FP32", "dims": [2], "optional": True})',
            "contains property other than",
        ),
        ('set_model_transaction_policy({"fast": True})', "contains property other than 'decoupled'"),
        ("as_dict().update(dynamic_batching_x=1)", "dynamic_batching_x"),
    ],
)
def test_what_contradicts_the_file_is_refused(complete: Callable[..., ModelConfig], call: str, text: str) -> None:
    body = f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.{call}
        return config
"""
    given = 'name: "m" max_batch_size: 8 input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]'
    with pytest.raises(RepoAgentError) as raised:
        complete(body, given)
    assert text in str(raised.value)


DECOUPLES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_model_transaction_policy({"decoupled": VALUE})
        return config
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "wanted"), [("false", "True"), ("true", "False")])
def test_whether_a_model_is_decoupled_is_not_changed_against_its_file(
    complete_anywhere: Callable[..., ModelConfig], given: str, wanted: str
) -> None:
    text = f'name: "m" model_transaction_policy {{ decoupled: {given} }}'
    with pytest.raises(InternalError) as raised:
        complete_anywhere(DECOUPLES.replace("VALUE", wanted), text)
    assert (
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to "
        f"'{given.title()}'." in str(raised.value)
    )
    assert complete_anywhere(DECOUPLES.replace("VALUE", given.title()), text).HasField("model_transaction_policy")


def test_auto_complete_config_must_return_its_argument(complete: Callable[..., ModelConfig]) -> None:
    with pytest.raises(InternalError, match="must return the ModelConfig"):
        complete("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        pass\n")


@pytest.mark.slow
def test_the_models_own_code_cannot_change_its_name_or_its_agents(
    complete_anywhere: Callable[..., ModelConfig],
) -> None:
    given = 'name: "m" model_repository_agents { agents [{ name: "checksum" }] }'
    config = complete_anywhere(
        """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.as_dict()["name"] = "other"
        config.as_dict().pop("model_repository_agents")
        return config
""",
        given,
    )
    assert config == read_text(given)


def test_a_model_without_the_function_is_left_as_it_is(complete: Callable[..., ModelConfig]) -> None:
    assert complete(EMPTY) == read_text('name: "m"')


def test_the_backend_needs_the_files_as_long_as_the_model_lives() -> None:
    assert PythonBackend.keeps_files_open


# An exception in a model's code has file and line, as Triton gives them, and no path of the server.


@pytest.mark.slow
def test_a_model_that_cannot_start_has_file_line_and_function_of_every_frame(run_anywhere: Any, tmp_path: Path) -> None:
    body = """
def helper():
    raise NameError("no such thing")

class TritonPythonModel:
    def initialize(self, args):
        helper()

    def execute(self, requests):
        pass
"""
    with pytest.raises(InternalError) as caught:
        run_anywhere(body)
    text = str(caught.value)
    frames = [line.strip() for line in text.partition("\n\nAt:\n")[2].splitlines()]
    assert [frame.partition("(")[0] for frame in frames] == ["1/model.py"] * 2
    assert [frame.rpartition(": ")[2] for frame in frames] == ["helper", "initialize"]
    assert "NameError: no such thing" in text
    assert str(tmp_path) not in text


@pytest.mark.slow
def test_an_execute_that_raises_has_them_too(run_anywhere: Any, tmp_path: Path) -> None:
    body = """
import json
class TritonPythonModel:
    def execute(self, requests):
        json.loads("{")
"""
    text = run_anywhere(body).error()
    assert "JSONDecodeError: " in text
    assert text.partition("\n\nAt:\n")[2].startswith("  1/model.py(")
    assert text.endswith("): execute\n")
    assert str(tmp_path) not in text
    assert "json/" not in text


@pytest.mark.slow
def test_a_file_that_cannot_be_run_has_them_too(run_anywhere: Any) -> None:
    with pytest.raises(InternalError, match=r"ZeroDivisionError: .*\n\nAt:\n  1/model\.py\(\d+\): <module>\n"):
        run_anywhere("1 / 0\n")
