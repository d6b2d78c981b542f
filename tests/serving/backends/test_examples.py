"""The example backends refuse configurations that they do not take, with Triton's texts."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import repoagent_example_backends

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

_REPOSITORY = Path(__file__).resolve().parents[3] / "examples" / "backends" / "repository"


def _load(config: ModelConfig) -> Any:
    registry = BackendRegistry(repoagent_example_backends.register_backends())
    return registry.get(config.backend).load(config, None, 1)  # type: ignore[arg-type]  # files are not read


def _config(model: str) -> ModelConfig:
    return read_text((_REPOSITORY / model / "config.pbtxt").read_text(), source=model)


@pytest.mark.parametrize("model", sorted(path.name for path in _REPOSITORY.iterdir()))
def test_the_models_of_the_example_are_taken(model: str) -> None:
    instance = _load(_config(model)).create_instance(InstanceSpec(f"{model}_0_0", "CPU"))
    instance.close()


@pytest.mark.parametrize(
    ("model", "written", "instead", "message"),
    [
        ("simple_identity", '"INPUT0"', '"IN0"', "expected input name to follow INPUT<index> pattern, got 'IN0'"),
        ("simple_identity", '"OUTPUT0"', '"OUT0"', "expected output name to follow OUTPUT<index> pattern, got 'OUT0'"),
        ("simple_identity", '"OUTPUT0"', '"OUTPUT1"', "expected input and output indices to match"),
        ("simple_identity", "output [", "input [", "model configuration must have equal input/output pairs"),
        (
            "simple_identity",
            'OUTPUT0" data_type: TYPE_STRING',
            'OUTPUT0" data_type: TYPE_FP32',
            "expected input and output datatype to match, got TYPE_STRING and TYPE_FP32",
        ),
        ("delayed_identity", "shape: [ 2, 2 ]", "shape: [ 4, 1 ]", "shape to match, got [4,1] and [2,2]"),
        ("repeat_int32", "max_batch_size: 0", "max_batch_size: 1", "only supports models with max_batch_size == 0"),
        ("repeat_int32", '"DELAY"', '"PAUSE"', "expected second input tensor name to be DELAY, got PAUSE"),
        ("repeat_int32", '"IDX"', '"I"', "expected second output tensor name to be IDX, got I"),
        (
            "repeat_int32",
            'IN" data_type: TYPE_INT32',
            'IN" data_type: TYPE_FP32',
            "IN datatype to be INT32, got TYPE_FP32",
        ),
        ("repeat_int32", "INT32 dims: [ -1 ]", "INT32 dims: [ 1, 1 ]", "IN shape to have one dimension, got [1,1]"),
        ("repeat_int32", "INT32 dims: [ -1 ]", "INT32 dims: [ 4 ]", "IN and DELAY shape to match, got [4] and [-1]"),
        ("repeat_int32", "UINT32 dims: [ 1 ]", "UINT32 dims: [ 2 ]", "expected WAIT shape to be [1], got [2]"),
        ("square_int32", "input [", "output [", "expected 1 input, got 0"),
        ("square_int32", "dims: [ 1 ] } ]\noutput", "dims: [ 2 ] } ]\noutput", "expected IN shape to be [1], got [2]"),
        ("simple_sequence", '"READY"', '"LAST"', "'START' and 'READY' must be configured as the control inputs"),
        ("simple_sequence", '"OUTPUT"', '"OUT"', "model output must be named 'OUTPUT'"),
        ("simple_sequence", 'INPUT" data_type: TYPE_INT32', 'INPUT" data_type: TYPE_INT64', "must have TYPE_INT32"),
        ("simple_sequence", "dims: [ 1 ] } ]\noutput", "dims: [ 2 ] } ]\noutput", "with shape matching 'INPUT'"),
        ("simple_dyna_sequence", '"END"', '"LAST"', "'START', 'END, 'READY' and 'CORRID' must be configured"),
        ("simple_dyna_sequence", "TYPE_UINT64", "TYPE_INT32", "must have TYPE_UINT64 or TYPE_STRING data-type"),
    ],
)
def test_what_is_not_taken_is_refused(model: str, written: str, instead: str, message: str) -> None:
    text = (_REPOSITORY / model / "config.pbtxt").read_text()
    assert written in text
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        _load(read_text(text.replace(written, instead, 1), source=model))


def test_a_delay_that_is_no_number_is_refused() -> None:
    config = _config("delayed_identity")
    config.parameters["execute_delay_ms"].string_value = "soon"
    with pytest.raises(InvalidArgumentError, match="'execute_delay_ms' must be a whole number, not 'soon'"):
        _load(config).create_instance(InstanceSpec("m_0_0", "CPU"))


@pytest.mark.parametrize(("batch", "shape"), [(0, (1, 3)), (4, (2, 1, 3))])
def test_identity_answers_zeros_for_an_optional_input_that_was_left_out(
    new_sender: Any, batch: int, shape: tuple[int, ...]
) -> None:
    pairs = "".join(
        f"""
        input {{ name: "INPUT{number}" data_type: {kind} dims: [-1, 3] optional: {optional} }}
        output {{ name: "OUTPUT{number}" data_type: {kind} dims: [-1, 3] }}"""
        for number, kind, optional in ((0, "TYPE_FP32", "false"), (1, "TYPE_INT64", "true"), (2, "TYPE_STRING", "true"))
    )
    instance = _load(read_text(f'name: "i" backend: "identity" max_batch_size: {batch} {pairs}')).create_instance(
        InstanceSpec("i_0_0", "CPU")
    )
    sender = new_sender()
    given = np.ones(shape, np.float32)
    instance.execute([InferRequest(Asked("i", {"INPUT0": Tensor.of(given)}), sender)])
    outputs = sender.final().outputs
    assert outputs["OUTPUT0"].array is given
    assert outputs["OUTPUT1"].array.tolist() == np.zeros(shape, np.int64).tolist()
    assert (outputs["OUTPUT2"].array.shape, set(outputs["OUTPUT2"].array.ravel())) == (shape, {b""})


def test_square_counts_its_delay_before_an_output_as_making_outputs(new_sender: Any) -> None:
    config = _config("square_int32")
    config.parameters["CUSTOM_OUTPUT_DELAY_NS"].string_value = "1000000"
    instance = _load(config).create_instance(InstanceSpec("s_0_0", "CPU"))
    sender = new_sender()
    instance.execute([InferRequest(Asked("s", {"IN": Tensor.of(np.array([1], np.int32))}), sender)])
    before = time.monotonic_ns()
    response, _ = sender.sent.get(timeout=60)
    assert 0 < response.output_start_ns <= max(before, time.monotonic_ns() - 1_000_000)
    instance.close()
