"""Small decoder folders, made once per session, and runners over them."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from repoagent_llm import Executor, ExecutorConfig, Request, Result
from repoagent_llm.builder import Form, Precision, build
from repoagent_llm.guidance.trial import Trial
from repoagent_llm.runner.decoder_spec import DecoderSpec, read_spec
from repoagent_llm.runner.openvino import model as openvino_model
from repoagent_llm.runner.openvino.graph import PagedGraph
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtGqaRunner, OrtStdRunner
from repoagent_llm.runner.ort_mixed import OrtMixedRunner
from repoagent_llm.runner.paged_folder import FolderWeights, PagedLayout
from repoagent_llm.runner.protocol import ModelRunner
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.tensorrt import TensorRtRunner

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.plan_folders import plan_folder
from llm.tests.reference import Reference
from tests.engines.platforms import allocations, new_platform

LIMIT: Final = timedelta(seconds=120)
KEPT: Final = 40
"""Graphs: tests of damaged folders open hundreds."""
MakeFolder = Callable[..., Path]


def results_of(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    """The one response of each request."""
    ids = executor.enqueue_requests(requests)
    return [responses[0].result for responses in executor.await_responses(ids, LIMIT)]


def need_openvino() -> None:
    """Skip a test that needs the extra."""
    if find_spec("openvino") is None:
        pytest.skip("openvino is not installed; from a checkout: pip install './llm[openvino]'")


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Runners over one folder with the same options share what OpenVINO compiled: that takes a fifth of a second.

    Several threads may load decoders.
    """
    kept: dict[str, tuple[PagedGraph, dict[object, Any]]] = {}
    compiling = openvino_model._compile

    def graph(spec: DecoderSpec, layout: PagedLayout, weights: FolderWeights, *extras: Any, **more: Any) -> PagedGraph:
        key = repr((spec, layout, type(weights._data), extras, more))  # the layout has the digest of the weights
        found = kept.get(key) or kept.setdefault(key, (PagedGraph(spec, layout, weights, *extras, **more), {}))
        if len(kept) > KEPT:
            kept.pop(next(iter(kept)), None)
        return found[0]

    def compiled(spec: DecoderSpec, model: Any, options: RunnerOptions, *kinds: str) -> Any:
        (found,) = (found for one, found in [*kept.values()] if one.model is model)
        key = options.threads, options.exact, kinds
        if key not in found:
            found[key] = compiling(spec, model, options, *kinds)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino_model, "PagedGraph", graph)
        patch.setattr(openvino_model, "_compile", compiled)
        yield


@pytest.fixture(scope="session")
def trial() -> Iterator[Trial]:
    trial = Trial()
    yield trial
    trial.close()


@pytest.fixture
def one_trial(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guides of all executors are compiled in one process, which takes longer to start than they do."""
    shared = SimpleNamespace(grammar=trial.grammar, close=lambda: None)
    monkeypatch.setattr("repoagent_llm.guidance.llguidance_backend.Trial", lambda: shared)


@pytest.fixture(scope="session")
def oracle() -> dict[str, Any]:
    """What transformers computed; see data/make_oracle.py."""
    body: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "oracle.json").read_text())
    return body


@pytest.fixture(scope="session")
def checkpoint(oracle: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``checkpoint(kind)``: the folder of weights that the oracle used."""
    root = tmp_path_factory.mktemp("checkpoints")

    def make(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            synthetic_checkpoint(folder, kind, **oracle["models"][kind]["shape"])
        return folder

    return make


@pytest.fixture(scope="session")
def reference(checkpoint: Callable[[str], Path]) -> Callable[[str], Reference]:
    """``reference(kind)``: the same weights in NumPy."""
    return lambda kind: Reference(checkpoint(kind))


@pytest.fixture(scope="session")
def decoder_folder(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """``decoder_folder(kind, form, precision, lora)``: a decoder folder, built on first use."""
    root = tmp_path_factory.mktemp("decoders")

    def make(
        kind: str = "llama", form: Form = Form.GQA, precision: Precision = Precision.FP32, lora: bool = False
    ) -> Path:
        folder = root / f"{kind}-{form.value}-{precision.value}-{lora}"
        if not folder.exists():
            block = 16 if form is Form.PAGED else 32  # all of its layers must be whole blocks wide
            build(checkpoint(kind), folder, form=form, precision=precision, lora=lora, block=block)
        return folder

    return make


@pytest.fixture(scope="session")
def decoder_plan(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """``decoder_plan(kind, precision, capacity, *profiles)``: a folder with a plan of the stand-in."""
    root = tmp_path_factory.mktemp("plans")

    def make(
        kind: str, precision: Precision = Precision.FP32, capacity: int = 65, *profiles: Any, name: str = ""
    ) -> Path:
        folder = root / f"{kind}-{precision.name}-{capacity}-{name}"
        if not folder.exists():
            plan_folder(checkpoint(kind), folder, precision, capacity, *profiles)
        return folder

    return make


@pytest.fixture
def open_plan(decoder_plan: MakeFolder) -> Iterator[Callable[..., TensorRtRunner]]:
    """``open_plan(kind, precision, *profiles, **options)``: a runner over the stand-in, with 64 tokens a sequence."""
    opened: list[TensorRtRunner] = []
    platform = new_platform()

    def make(
        kind: str = "llama", precision: Precision = Precision.FP32, *profiles: Any, name: str = "", **options: Any
    ) -> TensorRtRunner:
        settings = {"max_sequences": 4, **options}
        folder = decoder_plan(kind, precision, 65, *profiles, name=name)
        opened.append(TensorRtRunner(folder, RunnerOptions(**settings), platform=platform))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()
    assert allocations(platform) == 0


@pytest.fixture
def open_runner(decoder_folder: MakeFolder) -> Iterator[Callable[..., OrtRunner]]:
    """``open_runner(kind, form, precision, lora, loaded_lora, **options)``: a runner, closed at the end of the test.

    ``lora``: its folder is built for adapters; ``loaded_lora``: it takes them whatever its folder was built for.
    """
    opened: list[ModelRunner] = []

    def make(
        kind: str = "llama",
        form: Form = Form.GQA,
        precision: Precision = Precision.FP32,
        lora: bool = False,
        loaded_lora: bool = False,
        **options: Any,
    ) -> Any:
        gqa = OrtMixedRunner if options.get("mixed") else OrtGqaRunner
        settings = {
            "threads": 1,
            "spinning": False,
            "max_sequences": 4,
            "max_seq_len": 64,
            "lora": loaded_lora,
            **options,
        }
        folder = decoder_folder(kind, form, precision, lora)
        if form is Form.PAGED:
            need_openvino()
            opened.append(open_paged(read_spec(folder), RunnerOptions(**settings)))
        else:
            opened.append((gqa if form is Form.GQA else OrtStdRunner)(folder, RunnerOptions(**settings)))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture
def runner_options() -> dict[str, Any]:
    """What the runners of :func:`start` have besides; for modules to replace."""
    return {}


@pytest.fixture
def start(open_runner: Callable[..., OrtRunner], runner_options: dict[str, Any]) -> Iterator[Callable[..., Executor]]:
    """``start(kind, form, precision, config)``: an executor over a small model, shut down at the end."""
    with ExitStack() as stack:

        def make(
            kind: str = "llama",
            form: Form = Form.GQA,
            precision: Precision = Precision.FP32,
            config: ExecutorConfig | None = None,
        ) -> Executor:
            runner = open_runner(kind, form, precision, max_sequences=8, **runner_options)
            executor = Executor.from_runner(runner, config or ExecutorConfig(max_beam_width=4))
            stack.callback(executor.shutdown)
            return executor

        yield make


class CountingSession:
    """Counts the runs of a session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self.runs += 1
        self._session.run_with_iobinding(binding, options)


@pytest.fixture
def counted_runs() -> Callable[[OrtRunner], CountingSession]:
    """Puts a counter before a runner's session."""

    def count(runner: OrtRunner) -> CountingSession:
        counting = runner._session = CountingSession(runner._session)
        return counting

    return count
