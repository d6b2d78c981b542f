"""Every flag of Triton's server means the same here, or has no effect, and a warning names the reason."""

import re
from typing import Any

import click
import pytest
from repoagent_server.flags.ineffective_flags import INEFFECTIVE
from repoagent_server.program.serve_command import serve

from repoagent.server.exposition.page import MetricsSettings

#: All flags of tritonserver, the deprecated ones too, each with a value that Triton takes.
TRITON = {
    "--id": "server-1",
    "--exit-timeout-secs": "30",
    "--log-verbose": "1",
    "--log-info": "true",
    "--log-warning": "true",
    "--log-error": "true",
    "--log-format": "ISO8601",
    "--log-file": "/tmp/log",
    "--model-store": "/models",
    "--model-repository": "/models",
    "--exit-on-error": "true",
    "--disable-auto-complete-config": None,
    "--strict-readiness": "true",
    "--model-control-mode": "poll",
    "--repository-poll-secs": "15",
    "--load-model": None,  # with --model-control-mode; see test_cli.py
    "--model-config-name": "h100",
    "--model-load-thread-count": "4",
    "--model-load-retry-count": "0",
    "--model-namespacing": "false",
    "--enable-peer-access": "true",
    "--allow-http": "true",
    "--http-address": "0.0.0.0",
    "--http-port": "8000",
    "--reuse-http-port": "false",
    "--http-header-forward-pattern": "x-.*",
    "--http-thread-count": "8",
    "--http-max-input-size": "67108864",
    "--http-restricted-api": "model-repository:admin-key=admin-value",
    "--allow-grpc": "true",
    "--grpc-address": "0.0.0.0",
    "--grpc-port": "8001",
    "--reuse-grpc-port": "false",
    "--grpc-header-forward-pattern": "x-.*",
    "--grpc-infer-thread-count": "2",
    "--grpc-infer-allocation-pool-size": "8",
    "--grpc-max-response-pool-size": "100",
    "--grpc-use-ssl": "false",
    "--grpc-use-ssl-mutual": "false",
    "--grpc-server-cert": "/etc/cert",
    "--grpc-server-key": "/etc/key",
    "--grpc-root-cert": "/etc/root",
    "--grpc-infer-response-compression-level": "medium",
    "--grpc-keepalive-time": "7200000",
    "--grpc-keepalive-timeout": "20000",
    "--grpc-keepalive-permit-without-calls": "false",
    "--grpc-http2-max-pings-without-data": "2",
    "--grpc-http2-min-recv-ping-interval-without-data": "300000",
    "--grpc-http2-max-ping-strikes": "2",
    "--grpc-max-connection-age": "1000",
    "--grpc-max-connection-age-grace": "1000",
    "--grpc-restricted-protocol": "model-repository:admin-key=admin-value",
    "--allow-sagemaker": "true",
    "--sagemaker-port": "8080",
    "--sagemaker-safe-port-range": "8000-9000",
    "--sagemaker-thread-count": "8",
    "--allow-vertex-ai": "true",
    "--vertex-ai-port": "8080",
    "--vertex-ai-thread-count": "8",
    "--vertex-ai-default-model": "m",
    "--allow-metrics": "true",
    "--allow-gpu-metrics": "true",
    "--allow-cpu-metrics": "true",
    "--metrics-address": "0.0.0.0",
    "--metrics-port": "8002",
    "--metrics-interval-ms": "2000",
    "--metrics-config": "counter_latencies=false",
    "--trace-config": "triton,file=/tmp/trace",
    "--trace-file": "/tmp/trace",
    "--trace-level": "OFF",  # others need a file, too
    "--trace-rate": "1000",
    "--trace-count": "-1",
    "--trace-log-frequency": "0",
    "--backend-directory": "/opt/tritonserver/backends",
    "--backend-config": "python,shm-default-byte-size=1048576",
    "--repoagent-directory": "/opt/tritonserver/repoagents",
    "--cache-config": "local,size=1048576",
    "--cache-directory": "/opt/tritonserver/caches",
    "--rate-limit": "off",
    "--rate-limit-resource": "R1:4:0",
    "--pinned-memory-pool-byte-size": "268435456",
    "--cuda-memory-pool-byte-size": "0:67108864",
    "--cuda-virtual-address-size": "0:1073741824",
    "--min-supported-compute-capability": "6.0",
    "--buffer-manager-thread-count": "0",
    "--host-policy": "policy_0,numa-node=0",
    "--model-load-gpu-limit": "0:0.95",
    "--strict-model-config": "false",
    "--response-cache-byte-size": "1048576",
    "--allow-client-shm": "false",
}

_OURS = {flag for parameter in serve.params for flag in parameter.opts}


def test_every_flag_of_triton_is_known() -> None:
    assert set(TRITON) - _OURS == set()


@pytest.mark.parametrize("flag", sorted(TRITON))
def test_a_flag_of_triton_is_accepted_with_a_value_of_triton(
    parse: Any, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    for route in ("HEALTH", "PREDICT"):
        monkeypatch.setenv(f"AIP_{route}_ROUTE", f"/{route}")
    value = TRITON[flag]
    options = parse(*([] if flag == "--load-model" else [flag] if value is None else [flag, value]))
    warnings = [warning for warning in options.warnings if warning.startswith(f"{flag} has no effect: ")]
    assert len(warnings) == (flag in INEFFECTIVE), "what does nothing is named, and what is named does nothing"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--pinned-memory-pool-byte-size=many", "'many' is not a valid integer"),
        ("--cuda-memory-pool-byte-size=1024", "is not of the form <GPU device ID>:<bytes>"),
        ("--model-load-gpu-limit=0", "is not of the form <device_id>:<fraction>"),
        ("--host-policy=p,colour=red", "Unsupported host policy setting 'colour' is specified"),
        ("--host-policy=red", "is not of the form <policy_name>,<setting>=<value>"),
        ("--grpc-infer-thread-count=1", "1 is not in the range 2<=x<=128"),
        ("--grpc-max-response-pool-size=0", "0 is not in the range x>=1"),
        ("--metrics-config=counter_latencies", "--metrics-config option format is <setting>=<value>"),
        ("--metrics-config=latencies=true", "unknown setting 'latencies'"),
        ("--metrics-config=summary_latencies=maybe", "summary_latencies: invalid value for bool option: maybe"),
        ("--metrics-config=summary_quantiles=0.5", "must be pairs <quantile>:<error>"),
        ("--metrics-config=summary_quantiles=2:0.1", "must be pairs <quantile>:<error>"),
    ],
)
def test_a_value_that_triton_refuses_is_refused(parse: Any, flag: str, message: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(message)):
        parse(flag)


def test_the_former_name_of_the_cache_excludes_the_new_one(parse: Any) -> None:
    assert parse("--response-cache-byte-size=4096").cache_config == {"local": {"size": "4096"}}
    with pytest.raises(click.UsageError, match="Incompatible flags --response-cache-byte-size and --cache-config"):
        parse("--response-cache-byte-size=4096", "--cache-config=local,size=1")


@pytest.mark.parametrize(("text", "level"), [("true", 1), ("FALSE", 0), ("3", 3)])
def test_the_level_of_detail_of_the_log_may_be_a_boolean(parse: Any, text: str, level: int) -> None:
    assert parse(f"--log-verbose={text}").log.verbose == level


def test_what_metrics_show_of_latencies(parse: Any) -> None:
    given = (
        "counter_latencies=off",
        "summary_latencies=true",
        "summary_quantiles=0.5:0.05,1:0",
        "histogram_latencies=1",
    )
    assert parse(*(f"--metrics-config={setting}" for setting in given)).metrics == MetricsSettings(
        counter_latencies=False, summary_latencies=True, histogram_latencies=True, summary_quantiles=(0.5, 1.0)
    )
    again = ("--metrics-config=counter_latencies=true", "--metrics-config=counter_latencies=0")
    assert not parse(*again).metrics.counter_latencies, "the last one counts"


def test_resources_have_a_name_a_count_and_perhaps_a_device(parse: Any) -> None:
    options = parse("--rate-limit", "execution_count", "--rate-limit-resource", "R:4", "--rate-limit-resource", "S:1:2")
    assert options.rate_limit == "execution_count"
    assert [(item.name, item.count, item.device) for item in options.rate_limit_resource] == [("R", 4, -1), ("S", 1, 2)]
    for wrong in ("R", "R:x", ":4", "R:4:-1"):
        with pytest.raises(click.UsageError, match="is not of the form <name>:<count> or <name>:<count>:<device>"):
            parse("--rate-limit-resource", wrong)
