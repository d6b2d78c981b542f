from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.storage.repositories.sources import version_numbers
from repoagent.storage.repositories.url import RepositoryUrl, parse_url


@pytest.mark.parametrize(
    ("text", "protocol", "path", "options"),
    [
        ("/models", "file", "/models", {}),
        ("/models/../other/", "file", "/other", {}),
        ("file:///models", "file", "/models", {}),
        ("file://localhost/models", "file", "/models", {}),
        ("memory://", "memory", "/", {}),
        ("memory://a/b/", "memory", "/a/b", {}),
        ("s3://bucket", "s3", "bucket", {}),
        ("s3://bucket//a///b/", "s3", "bucket/a/b", {}),
        ("s3://localhost:4566/bucket", "s3", "bucket", {"endpoint_url": "http://localhost:4566"}),
        ("s3://http://h:1/bucket/p", "s3", "bucket/p", {"endpoint_url": "http://h:1"}),
        ("s3://https://host:9000/bucket/p/q", "s3", "bucket/p/q", {"endpoint_url": "https://host:9000"}),
        ("s3://https://minio.example/bucket", "s3", "bucket", {"endpoint_url": "https://minio.example"}),
        ("s3://https://[::1]:9000/bucket", "s3", "bucket", {"endpoint_url": "https://[::1]:9000"}),
        ("as://account/container/p", "abfs", "container/p", {"account_name": "account"}),
        ("as://acc.blob.core.windows.net/c", "abfs", "c", {"account_name": "acc"}),
        ("as://acc/c/p?sig=abc", "abfs", "c/p", {"account_name": "acc", "sas_token": "sig=abc"}),
        ("gs://bucket/p/", "gs", "bucket/p", {}),
        ("hf://org/repo@main/models", "hf", "org/repo@main/models", {}),
        ("https://host:8443/models/", "https", "https://host:8443/models", {}),
        ("MYFS://x/y", "myfs", "x/y", {}),
    ],
)
def test_every_spelling_gives_fsspec_a_protocol_and_a_path(
    text: str, protocol: str, path: str, options: dict[str, Any]
) -> None:
    url = parse_url(text)
    assert (url.protocol, url.path, url.options) == (protocol, path, options)


def test_a_relative_path_becomes_absolute(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("models").path == str(tmp_path / "models")


@pytest.mark.parametrize(
    "text",
    ["", "a\0b", "s3://", "s3:///", "s3://https://host:9000/", "as://account", "file://host/x", "https://", "hf://",
     "s3://https://host:port/bucket", "https://host/x?y", "memory\0://"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    ["s3://key:hush@host:9000/bucket", "s3://https://key:hush@host/b", "https://me:hush@host/x", "gs://a/../hush",
     "ftp://me:hush@host/x"],
)  # fmt: skip
def test_a_credential_in_a_url_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_url(text)
    assert "hush" not in str(caught.value)


def test_two_dots_in_a_remote_path_are_refused() -> None:
    with pytest.raises(UnsafePathError):
        parse_url("s3://bucket/../other")


def test_a_shared_access_signature_shows_nowhere() -> None:
    url = parse_url("as://acc/c/p?sig=hush")
    assert "hush" not in repr(url)
    assert url.child("m").text == "as://acc/c/p/m"
    assert url.child("m").options["sas_token"] == "sig=hush"


@given(st.text())
def test_any_text_is_a_url_or_a_clear_refusal(text: str) -> None:
    try:
        url = parse_url(text)
    except InvalidArgumentError:
        return
    assert isinstance(url, RepositoryUrl)


@pytest.mark.slow
@given(
    st.sampled_from(
        ["s3://", "s3://https://host:1/", "s3://h:80/", "gs://", "memory://", "file:///", "/", "as://acc/"]
    ),
    st.lists(st.text("abc-09_.", min_size=1, max_size=5).filter(lambda part: part.strip(".")), min_size=1, max_size=4),
)
def test_the_text_of_a_url_reads_as_the_same_url(prefix: str, parts: list[str]) -> None:
    url = parse_url(prefix + "/".join(parts))
    assert parse_url(url.text) == url
    assert parse_url(url.child("model").text) == url.child("model")


def test_versions_are_plain_numbers_that_clients_can_ask_for() -> None:
    names = ["1", "10", "2", "03", "latest", "-1", "0", str(2**63 - 1), str(2**63), "9" * 19, "٣"]
    assert version_numbers(names) == [1, 2, 10, 2**63 - 1]
