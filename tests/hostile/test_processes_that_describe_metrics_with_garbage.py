"""A model's process describes metrics with garbage: the page of metrics, which shows everybody's, must not break."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repoagent.serving.measuring.custom_metrics import REGISTRY
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import request, write_child

# It asks past the API that models have, as the code of a model can.
MODEL = """
(CORE,) = those_of(RemoteCore)
def ask(*question):
    try:
        return CORE.ask(*question)
    except Exception:
        return None
class TritonPythonModel:
    def execute(self, requests):
        family = ask("metric_family", ["nv_inference_count", "mine", 0])
        ask("metric", [family, {"model": "another"}, None])
        kinds = {0: (None,), 1: (None,), 2: ([], ["x"], [10**400], [float("nan")], [[1]], "ab", [1, 1], [1, 1e400])}
        descriptions = [5, None, [], chr(0xD800), "a metric"]
        for index, description in enumerate(descriptions):
            for kind, lists in kinds.items():
                family = ask("metric_family", [f"garbage_{index}_{kind}", description, kind])
                for buckets in lists:
                    for labels in ({}, {"a": 5}, {"a": chr(0xD800)}, {"": "b"}, {"a": "b"}, []):
                        number = ask("metric", [family, labels, buckets])
                        ask("metric_value", [number])
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())])]
"""


@pytest.mark.slow
def test_the_page_of_metrics_is_still_written(new_core: NewCore, repository: Path) -> None:
    write_child(repository, MODEL)
    core = new_core()
    core.load("m")
    core.infer(request(1.0))
    page = REGISTRY.text().encode().decode()
    assert "nv_inference_count" not in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert [name for name in families if name.startswith("garbage")] == ["garbage_4_2"]
    counts = [sample for sample in families["garbage_4_2"].samples if sample.name.endswith("_count")]
    assert sorted(sample.labels.get("a", "") for sample in counts) == ["", "b"]
