"""What is hidden when a configuration is shown."""

import pytest

from repoagent.config import agent_entries, read_text, redact, write_text
from repoagent.config.redaction import REDACTED, is_secret

# Put together here so that no scanner takes this file for a leak.
AGE_IDENTITY = "AGE-SECRET-KEY-" + "1" + "Q" * 58
PEM = "-----BEGIN " + "PRIVATE KEY-----\nMC4CAQAw\n"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
TOKEN = "ghp_" + "a" * 36
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "c2ln"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("password", "hunter2"),
        ("dbPassword", "hunter2"),
        ("passphrase", "correct horse"),
        ("PASSPHRASE", "correct horse"),
        ("client_secret", "x"),
        ("token", "x"),
        ("hf_token", "x"),
        ("accessToken", "x"),
        ("credentials", "x"),
        ("private_key", "x"),
        ("api-key", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("identity", AGE_IDENTITY),
        ("pem", PEM),
        ("id", AWS),
        ("note", f"see {TOKEN}"),
        ("header", JWT),
        ("url", "https://user:pass" + "word@host/path"),
        ("password", f"env:X {TOKEN}"),
        ("identity", f"file:{AGE_IDENTITY}"),
        ("password", "https://example.org/hunter2"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(key: str, value: str) -> None:
    assert is_secret(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("key", "env:AGE_KEY"),
        ("passphrase", "env:AGE_PASSPHRASE"),
        ("password", "file:/run/secrets/password"),
        ("token", "exec:fetch-token"),
        ("private_key", "kbs:///default/keys/model"),
        ("secret", "awskms:alias/model"),
        ("secret", "vault:kv/model#key"),
        ("MD5:1/model.py", "d41d8cd98f00b204e9800998ecf8427e"),
        ("recipient", "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"),
        ("max_tokens_in_paged_kv_cache", "4096"),
        ("tokenizer_dir", "/models/tok"),
        ("pad_token", "<pad>"),
        ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"),
        ("password", ""),
        ("url", "https://host:8000/path@v1"),
    ],
)
def test_what_does_not_is_shown(key: str, value: str) -> None:
    assert not is_secret(key, value)


CONFIG = """
name: "m"
metric_tags { key: "token" value: "hunter2" }
parameters { key: "password" value: { string_value: "hunter2" } }
parameters { key: "plain" value: { string_value: "shown" } }
optimization {
  execution_accelerators {
    cpu_execution_accelerator { name: "a" parameters { key: "secret" value: "hunter2" } }
  }
}
model_repository_agents {
  agents {
    name: "decrypt"
    parameters [ { key: "passphrase" value: "hunter2" }, { key: "passphrase" value: "env:P" } ]
  }
}
"""


def test_secrets_are_hidden_wherever_a_config_has_parameters() -> None:
    config = read_text(CONFIG)
    shown = redact(config)
    assert "hunter2" not in write_text(shown)
    assert agent_entries(shown)[0].parameters == (("passphrase", REDACTED), ("passphrase", "env:P"))
    assert shown.parameters["plain"].string_value == "shown"
    assert set(shown.metric_tags) == {"token"}


def test_the_original_is_left_alone() -> None:
    config = read_text(CONFIG)
    redact(config)
    assert config == read_text(CONFIG)
