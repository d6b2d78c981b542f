"""``--http-restricted-api`` and ``--grpc-restricted-protocol``."""

from typing import Any

import click
import pytest
from click.testing import CliRunner
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.program.serve_command import serve


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
