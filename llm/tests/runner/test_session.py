"""How a session is opened: on processors that multiply eight bits in different ways, and with which settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from repoagent_llm.builder import Form, Precision
from repoagent_llm.runner import session
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions


@pytest.mark.parametrize(
    ("flags", "safe"),
    [
        ("flags : sse2 avx2 avx512_vnni", True),
        ("flags : sse2 avx2 avx_vnni", True),
        ("flags : sse2 avx2", False),
        (None, False),
    ],
)
def test_without_vnni_products_of_eight_bits_are_computed_in_the_safe_way_and_give_the_same(
    flags: str | None,
    safe: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_runner: Callable[..., OrtRunner],
) -> None:
    there = tmp_path / "cpuinfo"
    if flags is not None:
        there.write_text(flags)
    found = []
    for place in (session._CPU_INFO, there):
        monkeypatch.setattr(session, "_CPU_INFO", place)
        runner = open_runner("llama", Form.GQA, Precision.INT8)
        seq = runner.open()
        assert seq is not None
        found.append(runner.step([Segment(seq, np.arange(3, 20, dtype=np.int32), Logits.ALL)]).logits.copy())
    settings = runner._session.get_session_options()
    if safe:  # what comes out is right only where it is said truly
        with pytest.raises(RuntimeError):
            settings.get_session_config_entry("session.x64quantprecision")
    else:
        assert settings.get_session_config_entry("session.x64quantprecision") == "1"
        np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("on", [True, False])
def test_options_reach_the_session(on: bool, open_runner: Callable[..., OrtRunner]) -> None:
    runner = open_runner("llama", Form.GQA, Precision.FP32, threads=1 + on, spinning=on, yielding=on)
    settings = runner._session.get_session_options()
    assert settings.intra_op_num_threads == 1 + on
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == str(int(on))
    if on:
        assert settings.get_session_config_entry("session.force_spinning_stop") == "1"
    else:
        with pytest.raises(RuntimeError):
            settings.get_session_config_entry("session.force_spinning_stop")


def test_a_graph_from_memory_finds_no_files(decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("llama", Form.GQA, Precision.FP32, False)
    buffer = replace(read_spec(folder), graph=onnx.load(folder / "model.onnx").SerializeToString())
    options = RunnerOptions(threads=1, spinning=False, max_sequences=1, max_seq_len=32)
    for model, own, place in ((folder, False, str(folder)), (folder, True, "/dev/null"), (buffer, False, "/dev/null")):
        runner = OrtGqaRunner(model, replace(options, own_weights=own))
        found = runner._session.get_session_options().get_session_config_entry(session._WEIGHTS_FOLDER)
        runner.close()
        assert found == place


def test_files_beside_a_graph_count_to_what_opening_it_may_take(
    decoder_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sizes = decoder_folder("llama", Form.GQA, Precision.FP32, False), []
    monkeypatch.setattr(session, "try_opening", lambda graph, *_, size, **__: sizes.append(size - len(graph)))
    OrtGqaRunner(folder, RunnerOptions(threads=1, spinning=False, max_sequences=1, max_seq_len=32)).close()
    assert sizes == [(folder / "model.onnx.data").stat().st_size]
