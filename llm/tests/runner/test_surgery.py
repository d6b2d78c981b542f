"""What load does to a decoder's graph."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from repoagent_llm.builder import Form, Precision
from repoagent_llm.runner import surgery
from repoagent_llm.runner.decoder_spec import read_spec


@pytest.mark.parametrize(
    ("form", "precision", "casts"),
    [
        (Form.GQA, Precision.FP32, 0),
        (Form.STD, Precision.FP32, 0),
        (Form.GQA, Precision.INT4, 0),
        (Form.GQA, Precision.INT8, 0),
        (Form.GQA, Precision.FP16, 1),
    ],
)
def test_logits_are_cast_only_where_they_are_of_another_type(
    form: Form, precision: Precision, casts: int, decoder_folder: Callable[..., Path]
) -> None:
    graph = onnx.load_model_from_string(
        surgery.operate(read_spec(decoder_folder("llama", form, precision))).graph
    ).graph
    makers = [node.op_type for node in graph.node if surgery.ROW_LOGITS in node.output]
    assert [op == "Cast" for op in makers] == [bool(casts)]
    assert {surgery.ROW_LOGITS, surgery.ARGMAX} <= {output.name for output in graph.output}
