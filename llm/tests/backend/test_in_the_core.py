"""A language model beside what else the core has: models in memory, warm-ups, ensembles, models that call it."""

from pathlib import Path

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.serving.core import ServingCore

TENSORS = """
input { name: "text_input" data_type: TYPE_STRING dims: [1] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [1] }
input { name: "stream" data_type: TYPE_BOOL dims: [1] }
output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
"""
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step [ {{
  model_name: "m" model_version: -1
  input_map {{ key: "text_input" value: "text_input" }}
  input_map {{ key: "max_tokens" value: "max_tokens" }}
  input_map {{ key: "stream" value: "stream" }}
  output_map {{ key: "text_output" value: "text_output" }}
}} ] }}
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = request.inputs()
            call = pb_utils.InferenceRequest(model_name="m", inputs=inputs, requested_output_names=["text_output"])
            sender = request.get_response_sender()
            for response in call.exec(decoupled=True):
                if response.output_tensors():
                    sender.send(pb_utils.InferenceResponse(response.output_tensors()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WARM_UP = """
model_warmup {
  name: "hello"
  inputs { key: "text_input" value { data_type: TYPE_STRING dims: [1] input_data_file: "prompt" } }
}
"""


def test_a_model_may_come_as_the_contents_of_its_files(core: ServingCore, decoder: Path) -> None:
    core.load(
        "m", files={f"1/{path.name}": path.read_bytes() for path in decoder.iterdir()}, config='{"backend": "llm"}'
    )
    assert Asker(core).ask("hello", max_tokens=3).texts()


def test_a_warm_up_generates_a_text(core: ServingCore, write_llm: WriteModel) -> None:
    place = write_llm(config=WARM_UP)
    (place / "warmup").mkdir()
    (place / "warmup" / "prompt").write_bytes(len(b"hello").to_bytes(4, "little") + b"hello")
    core.load("m")
    assert Asker(core).ask("hello", max_tokens=3).texts()


def test_an_ensemble_and_a_calling_model_hand_a_stream_on(
    core: ServingCore, write_llm: WriteModel, tmp_path: Path
) -> None:
    write_llm()
    for name, config in (("ens", ENSEMBLE), ("caller", f'backend: "python"\n{TENSORS}')):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        policy = "model_transaction_policy { decoupled: true }" if name == "caller" else ""
        (tmp_path / "models" / name / "config.pbtxt").write_text(config + policy)
    (tmp_path / "models" / "caller" / "1" / "model.py").write_text(CALLER)
    for name in ("m", "ens", "caller"):
        core.load(name)
    asker = Asker(core)
    wanted = asker.ask("hello", max_tokens=12, stream=True).texts()
    assert len(wanted) > 4
    for name in ("ens", "caller"):
        assert asker.ask("hello", name, max_tokens=12, stream=True).texts() == wanted
