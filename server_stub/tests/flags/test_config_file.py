"""Flags from a TOML file and from the environment, and which of them wins."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

_HIDDEN = "hunter2"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write the file; the flag that names it."""

    def write(text: str) -> str:
        (tmp_path / "serve.toml").write_text(text)
        return f"--config-file={tmp_path / 'serve.toml'}"

    return write


def test_every_kind_of_value_is_read(parse: Any, write: Any) -> None:
    options = parse(
        write(
            'id = "mine"\n'
            "http-port = 81\n"
            "strict-readiness = false\n"
            "allow-http = 1\n"
            "disable-auto-complete-config = true\n"
            'model-control-mode = "explicit"\n'
            'load-model = ["a", "b"]\n'
            'cache-config = "local,size=4096"\n'
            'grpc-infer-response-compression-level = "high"\n'
            "grpc-keepalive-time = 5\n"
            "pinned-memory-pool-byte-size = 9\n"
            'log-format = "json"\n'
        )
    )
    assert (options.server_id, options.http_port) == ("mine", 81)
    assert (options.strict_readiness, options.allow_http) == (False, True)
    assert options.strict_model_config
    assert (options.model_control_mode, options.load_model) == ("explicit", ("a", "b"))
    assert options.cache_config == {"local": {"size": "4096"}}
    assert (options.grpc.infer_compression_level, options.grpc.keepalive_time_ms) == ("high", 5)
    assert options.warnings == ("--pinned-memory-pool-byte-size has no effect: there is no pool of pinned memory",)
    assert options.log.format == "json"


def test_limits_have_a_table_and_one_flag_that_the_command_line_repeats(parse: Any, write: Any) -> None:
    file = write("http-port = 81\n[limits]\nmodel_files = 5\nconfig-bytes = 6\nwords = 7")
    limits = parse(file, "--limit", "model_files=8", "--limit=key-file-bytes=9", "--limit-words=10").limits
    assert (limits.model_files, limits.config_bytes, limits.key_file_bytes, limits.words) == (8, 6, 9, 10)


def test_a_limit_counts_by_the_rank_of_its_place_whichever_flag_it_has(
    parse: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPOAGENT_SERVE_LIMIT", "words=1 classes=1")
    monkeypatch.setenv("REPOAGENT_SERVE_LIMIT_INSTANCES", "1")
    limits = parse(write('limit = ["instances=2"]\n[limits]\nclasses = 2'), "--limit-words=3").limits
    assert (limits.words, limits.classes, limits.instances) == (3, 1, 1)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--limit=model_file=1", r"'model_file' is not a limit; write NAME=VALUE; did you mean 'model_files'\?"),
        ("--limit=model_files", "'model_files' is not a limit; write NAME=VALUE"),
        ("--limit=model_files=0", "0 is not in the range x>=1"),
        ("--limit=model_files=many", "'many' is not a valid integer"),
    ],
)
def test_a_limit_that_there_is_not_and_a_value_that_it_does_not_take_are_refused(
    parse: Any, flag: str, message: str
) -> None:
    with pytest.raises(click.UsageError, match=message):
        parse(flag)


@pytest.mark.parametrize(
    ("key", "meant"), [("model_file", "model_files"), ("model-file", "model_files"), ("limit-classes", "classes")]
)
def test_an_unknown_key_of_the_table_of_limits_is_refused_with_its_line(
    parse: Any, write: Any, key: str, meant: str
) -> None:
    text = rf"serve\.toml:3: \[limits\] has no '{key}'; did you mean '{meant}'"
    with pytest.raises(click.UsageError, match=text):
        parse(write(f"http-port = 81\n[limits]\n{key} = 5"))


@pytest.mark.parametrize("other", ["[limits]\nmodel-files = 5", "limit-model-files = 5"])
def test_a_file_gives_a_limit_once(parse: Any, write: Any, other: str) -> None:
    with pytest.raises(click.UsageError, match=r"serve\.toml:1: 'limit' has 'model_files', which this file gives"):
        parse(write(f'limit = ["classes=3", "model_files=4"]\n{other}'))


def test_the_value_in_a_pair_is_not_repeated(parse: Any, write: Any) -> None:
    with pytest.raises(click.UsageError, match="'limit': the value is not a valid integer") as raised:
        parse(write(f'limit = "classes={_HIDDEN}"'))
    assert _HIDDEN not in str(raised.value)


def test_the_command_line_then_the_environment_then_the_file_then_the_default(
    parse: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write('http-port = 1\nmetrics-port = 1\nmodel-repository = "/file"\nmodel-load-thread-count = 1')
    monkeypatch.setenv("REPOAGENT_SERVE_HTTP_PORT", "2")
    monkeypatch.setenv("REPOAGENT_SERVE_METRICS_PORT", "2")
    monkeypatch.setenv("REPOAGENT_SERVE_MODEL_REPOSITORY", "/environment")
    options = parse(file, "--http-port=3")
    assert (options.http_port, options.metrics_port, options.model_load_thread_count) == (3, 2, 1)
    assert options.grpc.port == 8001
    assert options.model_repository == ("/models",), "a flag that may be repeated is taken from one place"


def test_the_environment_alone_can_start_a_server(parse: Any, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_SERVE_CONFIG_FILE", write("http-port = 7").partition("=")[2])
    monkeypatch.setenv("REPOAGENT_SERVE_LOAD_MODEL", "a b")
    monkeypatch.setenv("REPOAGENT_SERVE_MODEL_CONTROL_MODE", "explicit")
    monkeypatch.setenv("REPOAGENT_SERVE_ALLOW_METRICS", "off")
    monkeypatch.setenv("REPOAGENT_SERVE_METRICS_ADDRESS", "")
    options = parse()
    assert (options.http_port, options.load_model, options.allow_metrics) == (7, ("a", "b"), False)
    assert options.metrics_address is None, "an empty variable is none"
    assert options.notes == ()


def test_a_variable_of_no_flag_is_noted(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_SERVE_HTTP_PROT", "2")
    assert parse().notes == (
        "environment variable REPOAGENT_SERVE_HTTP_PROT belongs to no flag; did you mean 'REPOAGENT_SERVE_HTTP_PORT'?",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\nhttp-prot = 1", "serve.toml:3: there is no flag 'http-prot'; did you mean 'http-port'?"),
        ("http-tls-cert = 1", "there is no flag 'http-tls-cert'; did you mean 'http-root-cert' or 'http-server-cert'?"),
        ("http_port = 1", "serve.toml:1: there is no flag 'http_port'; did you mean 'http-port'?"),
        ('x = 1\n"--http-port" = 1', "serve.toml:1: there is no flag 'x'"),
        ('config-file = "other"', "there is no flag 'config-file'"),
        ("http-port = [1, 2]", "serve.toml:1: 'http-port' takes one value, not several"),
        ("# note\n[http-port]\na = 1", "serve.toml:2: 'http-port' takes a text, a number or a boolean"),
        ("http-port = 2026-11-21", "'http-port' takes a text, a number or a boolean"),
        ('id = "a"\nserver-id = "b"', "serve.toml:2: 'server-id' is another name of a flag that is given above"),
        ("http-port = 70000", "serve.toml:1: 'http-port': the value is not in the range 0<=x<=65535"),
        ("http-port = true", "'http-port': the value is not a valid integer range"),
        ("strict-readiness = 7", "'strict-readiness': invalid value for bool option: the value"),
        (f'\nbackend-config = ["x,y=1", "{_HIDDEN}"]', "serve.toml:2: 'backend-config': the value is not of the form"),
        ("model-load-thread-count = 0", "'model-load-thread-count': the value is not in the range x>=1"),
        ("grpc-infer-thread-count = 1", "'grpc-infer-thread-count': the value is not in the range 2<=x<=128"),
        (f'http-port = "{_HIDDEN}"', "'http-port': the value is not a valid integer range"),
        (f'id = "{_HIDDEN}', "serve.toml is not TOML: "),
        ("allow-vertex-ai = true", "--allow-vertex-ai: AIP_HEALTH_ROUTE is not defined"),
        ("load-model = ['a']", "--load-model needs --model-control-mode=explicit"),
    ],
)
def test_what_a_file_may_not_say(parse: Any, write: Any, text: str, message: str) -> None:
    """U11: another flag was proposed for `http-tls-cert`."""
    with pytest.raises(click.UsageError, match=re.escape(message)) as error:
        parse(write(text))
    assert _HIDDEN not in str(error.value), "a value may be a secret"


def test_a_file_that_cannot_be_read_is_named(parse: Any, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"--config-file: cannot read .*none\.toml: No such file or directory"):
        parse(f"--config-file={tmp_path / 'none.toml'}")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(click.UsageError, match="binary is not TOML"):
        parse(f"--config-file={tmp_path / 'binary'}")
