"""The flags for SageMaker and Vertex AI."""

import re
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.http.hosting.sagemaker import SageMakerOptions
from repoagent_server.http.hosting.vertex import VertexOptions
from repoagent_server.program.serve_command import serve

ROUTES: Final = {"AIP_HEALTH_ROUTE": "/h", "AIP_PREDICT_ROUTE": "/p"}


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in ROUTES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_neither_is_served_unless_it_is_asked_for(parse: Any, routes: pytest.MonkeyPatch) -> None:
    options = parse("--sagemaker-port=1", "--vertex-ai-port=2")
    assert (options.sagemaker, options.vertex) == (None, None)


def test_both_have_tritons_ports(parse: Any, routes: pytest.MonkeyPatch) -> None:
    assert parse("--allow-sagemaker").sagemaker == SageMakerOptions(port=8080)
    assert parse("--allow-vertex-ai").vertex == VertexOptions("/h", "/p", port=8080)
    routes.setenv("AIP_HTTP_PORT", "7070")
    assert parse("--allow-vertex-ai").vertex.port == 7070
    assert parse("--allow-vertex-ai", "--vertex-ai-port=7071").vertex.port == 7071


def test_without_routes_vertex_ai_cannot_be_served(parse: Any) -> None:
    with pytest.raises(click.UsageError, match="--allow-vertex-ai: AIP_HEALTH_ROUTE is not defined"):
        parse("--allow-vertex-ai")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--allow-sagemaker", "--allow-vertex-ai"], "--sagemaker-port and --vertex-ai-port are both 8080"),
        (["--allow-sagemaker", "--http-port=8080"], "--http-port and --sagemaker-port are both 8080"),
        (["--allow-vertex-ai", "--metrics-port=8080"], "--metrics-port and --vertex-ai-port are both 8080"),
        (["--allow-http=false", "--grpc-port=8002"], "--grpc-port and --metrics-port are both 8002"),
        (["--sagemaker-safe-port-range=9"], "is not of the form <lowest port>-<highest port>"),
        (["--sagemaker-safe-port-range=9-8"], "is not of the form <lowest port>-<highest port>"),
        (
            ["--allow-sagemaker", "--sagemaker-safe-port-range=8001-8002"],
            "--http-port is 8000; --sagemaker-safe-port-range allows 8001 to 8002",
        ),
    ],
)
def test_ports_that_cannot_be_are_refused(
    parse: Any, routes: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    with pytest.raises(click.UsageError, match=re.escape(message)):
        parse(*flags)


def test_two_endpoints_may_share_a_port_at_two_addresses_and_take_free_ones(parse: Any) -> None:
    assert parse("--http-port=8001", "--grpc-address=127.0.0.2").grpc.port == 8001
    options = parse("--http-port=0", "--allow-sagemaker", "--sagemaker-port=0")
    assert (options.sagemaker.port, options.grpc.port) == (0, 0)
    assert parse("--allow-sagemaker", "--sagemaker-safe-port-range=8000-8002").sagemaker.safe_ports == (8000, 8002)


def test_a_variable_of_sagemaker_without_a_meaning_is_refused(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_TRITON_INFERENCE_TYPE", "guess")
    with pytest.raises(click.UsageError, match="SAGEMAKER_TRITON_INFERENCE_TYPE is 'guess'; use infer, generate"):
        parse("--allow-sagemaker")


def test_a_port_whose_redirects_reach_loads_is_open_and_sagemakers_is_not(
    parse: Any, routes: pytest.MonkeyPatch
) -> None:
    explicit = ("--model-control-mode=explicit", "--http-address=0.0.0.0", "--allow-http=false")
    assert parse(*explicit, "--allow-sagemaker").sagemaker is not None
    with pytest.raises(click.UsageError, match="accept it with --allow-open"):
        parse(*explicit, "--allow-vertex-ai")
    with pytest.raises(click.UsageError, match="accept it with --allow-open"):
        parse(*explicit, "--allow-vertex-ai", "--http-use-ssl-mutual")
    assert parse(*explicit, "--allow-vertex-ai", "--http-restricted-api=model-repository:k=v").vertex is not None


# ``--http-restricted-api`` and ``--grpc-restricted-protocol``.


def test_groups_of_names_share_a_header(parse: Any) -> None:
    options = parse(
        "--http-restricted-api=model-repository,logging:Admin-Key=a=b,c:d",
        "--http-restricted-api",
        "inference:other=x",
        "--grpc-restricted-protocol=health:Key=y",
    )
    admin = Restriction("Admin-Key", b"a=b,c:d")
    other = Restriction("other", b"x")
    assert options.http_restrictions == {Api.MODEL_REPOSITORY: admin, Api.LOGGING: admin, Api.INFERENCE: other}
    assert options.grpc_restrictions == {Api.HEALTH: Restriction("triton-grpc-protocol-key", b"y")}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("health", "its format is"),
        ("health:s3cret", "its format is"),
        ("s3cret=s3cret:s3cret=s3cret", "its format is"),
        (":key=s3cret", "its format is"),
        ("health:=s3cret", "its format is"),
        ("health:key=", "its format is"),
        ("health:a key=s3cret", "its key has characters that the name of a header cannot have"),
        ("helth:key=s3cret", "'helth' (there are health, metadata, inference, "),
        ("health, metadata:key=s3cret", "did you mean 'metadata'?"),
        ("Health:key=s3cret", "'Health'"),
        ("health,:key=s3cret", "''"),
        ("health,health:key=s3cret", "'health' can not be specified in multiple config groups"),
    ],
)
@pytest.mark.parametrize("flag", ["--http-restricted-api", "--grpc-restricted-protocol"])
def test_what_makes_no_sense_is_refused_without_the_value(parse: Any, flag: str, value: str, reason: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        parse(flag, value)
    message = " ".join(str(raised.value).replace("│", " ").split())
    assert reason in message
    assert flag in message
    assert "s3cret" not in message


def test_values_are_not_shown(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_SERVE_HTTP_RESTRICTED_API", "health:key=s3cret")
    options = parse("--grpc-restricted-protocol=health:key=s3cret")
    assert options.http_restrictions == {Api.HEALTH: Restriction("key", b"s3cret")}
    assert "s3cret" not in repr(options)
    assert "s3cret" not in CliRunner().invoke(serve, ["--help"]).output
