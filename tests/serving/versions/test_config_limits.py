import pytest

from repoagent.config import read_text
from repoagent.serving.versions.config_limits import meaningless_settings


def test_settings_that_nothing_goes_by_are_named() -> None:
    config = read_text("""
name: "m" runtime: "x.so"
optimization { cuda { graphs: true } execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }
model_operations { op_library_filename: "ops.so" }
instance_group { secondary_devices { device_id: 0 } passive: true host_policy: "p" }
model_metrics {
  metric_control {
    metric_identifier { family: "nv_inference_queue_duration_us" }
    histogram_options { buckets: 1 }
  }
}
""")
    assert list(meaningless_settings(config)) == [
        "optimization.execution_accelerators",
        "optimization.cuda",
        "model_operations",
        "runtime",
        "instance_group.secondary_devices",
        "instance_group.passive",
        "instance_group.host_policy",
        "model_metrics of family 'nv_inference_queue_duration_us'",
    ]


@pytest.mark.parametrize("runs", ['backend: "tensorrt"', 'platform: "tensorrt_plan"'])
def test_what_a_plan_goes_by_is_not_named(runs: str) -> None:
    assert not list(meaningless_settings(read_text(f"{runs} optimization {{ cuda {{ graphs: true }} }}")))


def test_what_has_an_effect_is_not_named() -> None:
    config = read_text("""
name: "m" optimization { graph { level: 1 } } instance_group { count: 2 kind: KIND_CPU }
model_metrics {
  metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" }
    histogram_options { buckets: 1 }
  }
}
""")
    assert not list(meaningless_settings(config))
