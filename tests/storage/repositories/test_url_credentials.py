import json
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, NotFoundError
from repoagent.storage.repositories.url import parse_url, with_credentials

FILE = {
    "s3": {
        "": {"key_id": "k0", "secret_key": "s0", "region": "eu-1", "session_token": "t", "profile": ""},
        "s3://bucket": {"key_id": "k1", "secret_key": "s1"},
        "s3://bucket/deep": {"profile": "deep"},
    },
    "gs": {"": "/etc/google.json"},
    "as": {"as://account/container": {"account_str": "account", "account_key": "key"}},
}


def options(url: str, tmp_path: Path, document: Any = FILE, **more: str) -> dict[str, Any]:
    (tmp_path / "c.json").write_text(document if isinstance(document, str) else json.dumps(document))
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "c.json"), **more}
    return dict(with_credentials(parse_url(url), environment).options)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://other/x", {"key": "k0", "secret": "s0", "token": "t", "client_kwargs": {"region_name": "eu-1"}}),
        ("s3://bucket/x", {"key": "k1", "secret": "s1"}),
        ("s3://bucket/deep/x", {"profile": "deep"}),
        ("s3://bucket/deeper", {"key": "k1", "secret": "s1"}),
        ("s3://bucket2/x", {"key": "k0", "secret": "s0", "token": "t", "client_kwargs": {"region_name": "eu-1"}}),
        ("gs://b/x", {"token": "/etc/google.json"}),
        ("as://account/container/x", {"account_name": "account", "account_key": "key"}),
        ("as://other/container/x", {"account_name": "other"}),
        ("https://host/x", {}),
    ],
)
def test_the_longest_prefix_of_tritons_credential_file_counts(
    url: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    assert options(url, tmp_path) == expected


def test_azure_takes_tritons_variables(tmp_path: Path) -> None:
    variables = {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"}
    assert options("as://mine/c/x", tmp_path, {}, **variables) == {"account_name": "mine", "account_key": "k"}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ('{"s3": secret}', "is not valid JSON"),
        ([], "is not a JSON object"),
        ({"s3": []}, "not an object of URL prefixes"),
        ({"s3": {"": "x"}}, "expected form"),
        ({"s3": {"": {"key_id": 5}}}, "expected form"),
        ({"s3": {"": {"key": "secret"}}}, "entry with the name 'key'"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_without_its_secrets(
    document: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=text) as raised:
        options("s3://b/x", tmp_path, document)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_not_there_is_reported() -> None:
    with pytest.raises(NotFoundError, match="TRITON_CLOUD_CREDENTIAL_PATH"):
        with_credentials(parse_url("s3://b/x"), {"TRITON_CLOUD_CREDENTIAL_PATH": "/none"})
