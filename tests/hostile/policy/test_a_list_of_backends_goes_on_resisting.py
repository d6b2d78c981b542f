"""What resisted from the start: rules with ``backends``, pinned guards under races, and references to keys."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.policy.ground import Ground, Road, by_a_load_request, digest_list, refusal_of, sha256

RULE = '[[rule]]\nmodels = ["m"]\nbackends = ["onnxruntime"]\n'
PROGRAMS = {
    "bare": b"",
    "named": b'backend: "python"',
    "by the file name": b'default_model_filename: "model.py"',
    "with another platform": b'backend: "python" platform: "onnxruntime_onnx"',
    "with a runtime": b'backend: "python" runtime: "onnxruntime"',
    "of another case": b'backend: "OnnxRuntime"',
    "with a space": b'backend: "onnxruntime "',
    "an ensemble": b'platform: "ensemble"',
}


@pytest.mark.parametrize("config", PROGRAMS.values(), ids=[name.replace(" ", "-") for name in PROGRAMS])
def test_no_road_leads_round_a_list_of_backends(
    ground: Ground, road: Road, config: bytes, program: bytes, trap: Path
) -> None:
    ground.write({"1/model.py": program} | ({"config.pbtxt": config} if config else {}))
    assert road(ground, RULE) != ""
    assert not trap.exists()


@pytest.mark.slow
def test_a_swapped_file_never_passes_a_pinned_guard(ground: Ground, weights: Callable[[float], bytes]) -> None:
    files = {"config.pbtxt": b'backend: "onnxruntime" max_batch_size: 8\n', "1/model.onnx": weights(1)}
    directory = ground.write(files | {"SHA256SUMS": digest_list(files)})
    core = ground.core(
        f"{RULE}agents = []\n"
        'before = [{ agent = "checksum", parameters = '
        f'{{ manifest = "SHA256SUMS", "SHA256:SHA256SUMS" = "{sha256(digest_list(files))}" }} }}]\n'
    )
    evil, honest, place = ground.path / "evil", ground.path / "honest", directory / "1" / "model.onnx"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for content, source in ((weights(666), evil), (files["1/model.onnx"], honest)):
                source.write_bytes(content)
                os.replace(source, place)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        outcomes = [_served(core) for _ in range(60)]
    finally:
        stop.set()
        swapper.join()
    assert set(outcomes) <= {None, 1.0}


def _served(core: ServingCore) -> float | None:
    """What the model adds to its input, if it is loaded."""
    if refusal_of(lambda: core.load("m")):
        return None
    answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.zeros((1, 4), np.float32))})))
    core.unload("m")
    return float(answer.outputs["y"].array[0, 0])


@pytest.mark.parametrize("reference", ["exec:touch {trap}", "kbs:///../../x", "vault:kv/a%2F..%2Fb/c", "file:relative"])
def test_a_models_reference_to_a_key_runs_and_reads_nothing(ground: Ground, trap: Path, reference: str) -> None:
    entry = f'{{ name: "decrypt" parameters {{ key: "identity" value: "{reference.format(trap=trap)}" }} }}'
    ground.write(
        {"config.pbtxt": f"model_repository_agents {{ agents [ {entry} ] }}".encode(), "1/model.onnx.age": b"age"}
    )
    assert "agent 'decrypt'" in by_a_load_request(ground, "")
    assert not trap.exists()
