"""The command line of ``repoagent serve``."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from repoagent_server.program.options import LogOptions, ServeOptions
from repoagent_server.program.serve_command import serve

from repoagent.limits import Limits

_REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "serve.md"


def test_without_flags_the_defaults_are_tritons_except_the_address(parse: Any) -> None:
    options = parse()
    assert options == ServeOptions(
        model_repository=("/models",), repoagent_directory=Path("/opt/tritonserver/repoagents")
    )
    assert (options.http_address, options.http_port, options.metrics_port) == ("127.0.0.1", 8000, 8002)


def test_beside_a_free_port_for_http_all_ports_are_free_ones_but_those_that_are_given(parse: Any) -> None:
    options = parse("--http-port=0")
    assert (options.grpc.port, options.metrics_port) == (0, 0)
    options = parse("--http-port=0", "--grpc-port=4", "--metrics-port=5")
    assert (options.grpc.port, options.metrics_port) == (4, 5)


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--strict-readiness=false"], False),
        (["--strict-readiness", "0"], False),
        (["--strict-readiness=OFF"], False),
        (["--strict-readiness", "true"], True),
        (["--strict-readiness=1"], True),
        (["--strict-readiness"], True),
    ],
)
def test_booleans_are_given_as_triton_takes_them(parse: Any, flags: list[str], value: bool) -> None:
    assert parse(*flags, "--http-port=1").strict_readiness is value


def test_flags_with_several_values(parse: Any) -> None:
    options = parse(
        "--model-store=s3://bucket/models",
        "--model-control-mode=EXPLICIT",
        "--load-model=a",
        "--load-model",
        "b",
        "--cache-config=local,size=4096",
        "--backend-config=onnxruntime,threads=2",
        "--backend-config=onnxruntime,threads=4",
        "--backend-config=x=1,y=2",
        "--disable-auto-complete-config",
        "--log-verbose=1",
        "--log-format=iso8601",
        "--reuse-http-port=true",
    )
    assert options.model_repository == ("/models", "s3://bucket/models")
    assert (options.model_control_mode, options.load_model) == ("explicit", ("a", "b"))
    assert options.backend_config == {"onnxruntime": {"threads": "4"}, "": {"x": "1,y=2"}}
    assert options.cache_config == {"local": {"size": "4096"}}
    assert options.strict_model_config
    assert options.log == LogOptions(verbose=1, format="ISO8601")
    assert options.reuse_http_port


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--strict-readiness=maybe"], "invalid value for bool option: maybe"),
        (["--backend-config=x"], "is not of the form <backend>,<setting>=<value>"),
        (["--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (["--model-control-mode=explicit", "--load-model=a", "--load-model=*"], "do not name others beside it"),
        (["--model-load-on-demand"], "--model-load-on-demand needs --model-control-mode=explicit"),
        (["--model-memory-budget-bytes=9"], "--model-memory-budget-bytes needs --model-load-on-demand"),
        (["--http-port=9", "--metrics-port=9"], "give them different ports"),
        (["--http-port=70000"], "70000 is not in the range"),
        (["--nosuch"], "No such option"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_change(parse: Any, flags: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(message)):
        parse(*flags)


def test_every_flag_is_documented() -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`(--[a-z0-9-]+)", text))
    flags = {name for parameter in serve.params for name in parameter.opts}
    assert flags - documented == set()
    assert documented - flags == {"--flag", "--help"}


def test_every_limit_is_a_flag_and_its_default_is_in_the_reference(parse: Any) -> None:
    lines = _REFERENCE.read_text().splitlines()
    for one in fields(Limits):
        flag = Limits.flag(one.name)
        assert any(line.startswith(f"| `{flag}` | {one.default} |") for line in lines), flag
        assert getattr(parse(f"{flag}=7").limits, one.name) == 7
