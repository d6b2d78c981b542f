"""Which OpenVINO is accepted, and what is refused."""

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from repoagent_llm.runner.openvino import operator
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

from llm.tests.conftest import need_openvino


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What was found out is found out again."""
    for function in (operator.openvino, operator.check_openvino, operator._unused_inputs):
        function.cache_clear()
    yield
    for function in (operator.openvino, operator.check_openvino, operator._unused_inputs):
        function.cache_clear()


def test_a_machine_without_openvino_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UnsupportedFeatureError, match=r"pip install '\./llm\[openvino\]'"):
        operator.openvino()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = ModuleType("openvino")
    other.__version__ = "2026.5.0-12345"
    monkeypatch.setitem(sys.modules, "openvino", other)
    with pytest.raises(UnsupportedFeatureError, match=r"openvino 2026\.5\.0 is installed, and 2026\.4\.1 is"):
        operator.openvino()


def test_an_operator_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = ModuleType("openvino")
    other.__version__ = operator.TRIED
    monkeypatch.setitem(sys.modules, "openvino", other)
    monkeypatch.setitem(sys.modules, "openvino.op", ModuleType("openvino.op"))
    with pytest.raises(UnsupportedFeatureError, match="_PagedAttentionExtension"):
        operator.openvino()


def test_the_operator_computes_what_numpy_computes() -> None:
    need_openvino()
    operator.check_openvino()
    for trial in ((), (20, None), (0, np.zeros(2, np.float32)), (20, np.array([0.5, -1], np.float32))):
        found, expected = operator._try_operator(*trial)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    for other in ((), (21, None), (0, np.ones(2, np.float32))):  # each of them matters
        assert np.abs(operator._try_operator(*other)[1] - expected).max() > 1e-3


@pytest.mark.slow
def test_a_signal_ends_no_process_whose_model_another_thread_gave_back() -> None:
    need_openvino()
    code = """
import signal, threading
from repoagent_llm.runner.openvino import operator
ov = operator.openvino()
number = operator.parameter("number", "f32", [1])
models = [operator.core().compile_model(ov.ov.Model([ov.op.result(number)], [number]), "CPU")]
giving_back = threading.Thread(target=models.clear)
giving_back.start()
giving_back.join()
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
signal.raise_signal(signal.SIGUSR1)
"""
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "handled\n"), ended.stderr


@pytest.mark.parametrize(
    ("tried", "message"),
    [
        (lambda *_: (np.zeros(3), np.ones(3)), "differs by 1"),
        (lambda *_: (np.full(3, np.nan), np.ones(3)), "differs by nan"),
        (lambda *_: 1 // 0, "cannot run its operator here: integer division"),
    ],
)
def test_a_machine_on_which_it_is_wrong_is_refused(tried: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_try_operator", tried)
    with pytest.raises(UnsupportedFeatureError, match=message):
        operator.check_openvino()


def test_inputs_that_are_not_known_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    need_openvino()
    monkeypatch.setattr(operator, "openvino", lambda: SimpleNamespace(transform=lambda model: None))
    monkeypatch.setattr(operator, "_smallest_model", lambda: SimpleNamespace(get_ops=list))
    with pytest.raises(UnsupportedFeatureError, match="inserts no operator"):
        operator._unused_inputs()
