"""A model's process answers the first thing that it is asked with garbage: the load fails, with an error of ours."""

from pathlib import Path

import pytest

from repoagent.errors import RepoAgentError
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import write_child

MODEL = """
class TritonPythonModel:
    STATIC
    def WHEN(*_):
        packet(WORK, KIND, BODY)
        threading.Event().wait()
    def execute(self, requests):
        return []
"""
DEEP = '"[" * 900 + "]" * 900'
FAILED = {
    "nothing": "'null'",
    "a number": "'5'",
    "an empty list": "'[]'",
    "a code that there is not": "'[99, 1]'",
    "a code that is a list": "'[[], 1]'",
    "a code without end": "'[' + '9' * 4000 + ', 1]'",
    "lists in lists": f"'[1, ' + {DEEP} + ']'",
}
WHEN = {"initialize": "", "auto_complete_config": "@staticmethod"}
COMPLETED = {
    "a number": "'5'",
    "a list": "'[1]'",
    "a name that is a list": "json.dumps({'name': [1]})",
    "an input that is a text": "json.dumps({'input': 'x'})",
    "a number without end": "'{\"max_batch_size\": ' + '9' * 4000 + '}'",
    "a text that no one can write": "json.dumps({'default_model_filename': chr(0xD800)})",
    "lists in lists": f"'{{\"input\": ' + {DEEP} + '}}'",
}


def load(new_core: NewCore, repository: Path, when: str, kind: int, body: str) -> str:
    text = MODEL.replace("STATIC", WHEN[when]).replace("WHEN", when).replace("KIND", str(kind)).replace("BODY", body)
    write_child(repository, text)
    with pytest.raises(RepoAgentError) as caught:
        new_core().load("m")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("body", FAILED)
def test_an_error_that_is_not_one_is_said_to_be_that(new_core: NewCore, repository: Path, when: str, body: str) -> None:
    text = load(new_core, repository, when, 6, FAILED[body])
    assert f"is not healthy: in {when}, its answer cannot be read" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [7, 12, 99])
def test_an_answer_to_something_else_is_said_to_be_that(new_core: NewCore, repository: Path, kind: int) -> None:
    assert "its answer cannot be read" in load(new_core, repository, "initialize", kind, "'[1, \"not an error\"]'")


@pytest.mark.slow
@pytest.mark.parametrize("body", COMPLETED)
def test_a_configuration_that_is_not_one_fails_the_load(new_core: NewCore, repository: Path, body: str) -> None:
    text = load(new_core, repository, "auto_complete_config", 5, COMPLETED[body])
    assert "auto_complete_config" in text or "config" in text
    assert "Traceback" not in text
    assert text.encode()
