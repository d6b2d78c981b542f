"""The command line of ``repoagent serve``."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from repoagent_server.program.options import LogOptions, ServeOptions
from repoagent_server.program.serve_command import serve
from repoagent_server.tls.certificates import TlsFiles

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
        (["--model-control-mode=explicit", "--http-address=0.0.0.0"], "--http-address=0.0.0.0: anyone who reaches"),
        (["--model-control-mode=EXPLICIT", "--http-address=::"], "accept it with --allow-open"),
        (["--model-control-mode=explicit", "--grpc-address=unix.example"], "--grpc-address=unix.example: anyone"),
        (["--model-control-mode=explicit", "--http-address="], "--http-address=: anyone who reaches"),
        (["--model-control-mode=explicit", "--grpc-address=[::]"], "--grpc-restricted-protocol=model-repository"),
        (["--http-port=70000"], "70000 is not in the range"),
        (["--nosuch"], "No such option"),
        (["--audit-required"], "need --audit-log"),
        (["--audit-rotate-bytes=1000"], "need --audit-log"),
        (["--audit-key=env:X"], "need --audit-log"),
        (["--worker-user=nobody"], "--worker-user needs --processes above 1"),
        (
            ["--processes=2", "--model-control-mode=explicit", "--model-namespacing=true"],
            "not with --processes above 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_change(parse: Any, flags: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(message)):
        parse(*flags)


_EXPLICIT = ("--model-control-mode=explicit", "--http-address=0.0.0.0", "--grpc-address=0.0.0.0")


@pytest.mark.parametrize(
    "flags",
    [
        ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0"],
        ["--http-address=0.0.0.0", "--model-control-mode=poll"],
        ["--model-control-mode=explicit", "--http-address=127.8.9.1", "--grpc-address=[::1]"],
        ["--model-control-mode=explicit", "--http-address=localhost", "--grpc-address=unix:/run/grpc"],
        ["--model-control-mode=explicit", "--http-address=0.0.0.0", "--allow-http=false"],
        [*_EXPLICIT, "--allow-open"],
        [*_EXPLICIT, "--access=access.toml"],
        [*_EXPLICIT, "--http-use-ssl-mutual", "--grpc-use-ssl-mutual"],
        [
            *_EXPLICIT,
            "--http-restricted-api=model-repository:key=value",
            "--grpc-restricted-protocol=model-repository,logging:key=value",
        ],
    ],
)
def test_ports_that_are_not_open_or_may_be_let_the_server_start(parse: Any, flags: list[str]) -> None:
    parse(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--http-use-ssl", "--grpc-use-ssl", "--http-root-cert=ca.pem", "--grpc-root-cert=ca.pem"],
        ["--http-use-ssl-mutual"],
        ["--http-restricted-api=inference:key=value", "--grpc-restricted-protocol=model-repository:key=value"],
        ["--http-restricted-api=model-repository:key=value"],
    ],
)
def test_what_does_not_keep_strangers_from_models_does_not_close_a_port(parse: Any, flags: list[str]) -> None:
    with pytest.raises(click.UsageError, match="can load and unload models"):
        parse(*_EXPLICIT, *flags)


def test_tls_of_http_and_of_the_metrics(parse: Any) -> None:
    files = ["--http-server-cert=c.pem", "--http-server-key=k.pem", "--http-root-cert=r.pem"]
    tls = parse("--http-use-ssl", *files).http_tls
    assert (tls.http, tls.metrics) == (TlsFiles("HTTP", "c.pem", "k.pem", "r.pem", False, ("http/1.1",)), None)
    tls = parse("--http-use-ssl-mutual", "--metrics-use-ssl", *files).http_tls
    assert tls.http.mutual
    assert tls.metrics.mutual
    options = parse(*files)
    assert options.http_tls.http is None
    assert "HTTP is served WITHOUT TLS" in options.warnings[0]


def test_every_flag_is_documented() -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`(--[a-z0-9-]+)", text))
    flags = {name for parameter in serve.params for name in parameter.opts}
    assert flags - documented == set()
    assert documented - flags == {"--flag", "--help"}


def test_the_reference_has_the_default_of_every_flag() -> None:
    """The option classes are where a setting is declared; the page follows them."""
    rows = dict(re.findall(r"^\| `(--[a-z0-9-]+)`[^|]*\| ([^|]*?) ?\|", _REFERENCE.read_text(), re.MULTILINE))
    wrong = {}
    for one in serve.params:
        default = one.default
        if isinstance(default, bool):
            default = str(default).lower()
        if isinstance(default, int | str | Path) and default not in ("", "false"):
            stated = next((rows[name] for name in one.opts if name in rows), None)
            if stated is None or str(default) not in stated:
                wrong[one.opts[0]] = (stated, default)
    assert wrong == {}


def test_every_limit_is_a_flag_and_its_default_is_in_the_reference(parse: Any) -> None:
    lines = _REFERENCE.read_text().splitlines()
    for one in fields(Limits):
        flag = Limits.flag(one.name)
        assert any(line.startswith(f"| `{flag}` | {one.default} |") for line in lines), flag
        assert getattr(parse(f"{flag}=7").limits, one.name) == 7


def test_a_limit_that_0_turns_off_takes_0_as_a_flag_and_others_do_not(parse: Any) -> None:
    for one in fields(Limits):
        flag, least = Limits.flag(one.name), one.metadata["least"]
        assert getattr(parse(f"{flag}={least}").limits, one.name) == least
        with pytest.raises(click.UsageError, match=f"{least - 1} is not in the range x>={least}"):
            parse(f"{flag}={least - 1}")
    assert parse("--limit-build-seconds=0").limits.build_seconds == 0
