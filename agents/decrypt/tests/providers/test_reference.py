"""Taking references apart."""

import base64
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.providers.reference import (
    CIPHERTEXT_OPTIONS,
    ciphertext_bytes,
    ciphertext_text,
    parse_reference,
)

from repoagent.api import InvalidArgumentError, NotFoundError

ANY = re.compile(".*")


def test_all_parts_are_found_and_decoded() -> None:
    found = parse_reference("x://host.name/a%20b/c?version=%232&context.a=b+c#the%20field", options={"version"},
                            prefixes=["context."])  # fmt: skip
    assert (found.scheme, found.host, found.parts(), found.field) == ("x", "host.name", ["a b", "c"], "the field")
    assert found.options == {"version": "#2", "context.a": "b+c"}
    assert str(found) == "x://host.name/a%20b/c"
    assert str(parse_reference("x:a/b?", options=())) == "x:a/b"


@pytest.mark.parametrize("uri", ["x:a?other=1", "x:a?v=1&v=2", "x:a?=1", "x://[/a"])
def test_unknown_repeated_and_malformed_parts_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_reference(uri, options={"v"})


@pytest.mark.parametrize("uri", ["x:", "x:a//b", "x:a/../b", "x:a/%2e%2e/b", "x:./a"])
def test_relative_parts_of_a_path_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="empty or relative"):
        parse_reference(uri).parts()


def test_the_ciphertext_comes_from_the_option_or_from_the_file(tmp_path: Path) -> None:
    blob = os.urandom(50)
    text = base64.b64encode(blob).decode()
    (tmp_path / "raw").write_bytes(blob)
    (tmp_path / "text").write_text(f"vault:v1:{text}\n")
    inline = parse_reference(f"x:k?ciphertext={text}", options=CIPHERTEXT_OPTIONS)
    assert ciphertext_bytes(inline) == blob
    assert ciphertext_bytes(parse_reference(f"x:k?ciphertext-file={tmp_path}/raw", options=CIPHERTEXT_OPTIONS)) == blob
    in_file = parse_reference(f"x:k?ciphertext-file={tmp_path}/text", options=CIPHERTEXT_OPTIONS)
    assert ciphertext_text(in_file, ANY) == f"vault:v1:{text}"
    assert ciphertext_text(inline, ANY) == text


def test_ciphertexts_that_are_not_there_or_make_no_sense_are_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff")
    for uri, kind, text in [
        ("x:k", InvalidArgumentError, "needs either"),
        ("x:k?ciphertext=AA&ciphertext-file=/x", InvalidArgumentError, "needs either"),
        ("x:k?ciphertext=?", InvalidArgumentError, "not base64"),
        (f"x:k?ciphertext-file={tmp_path}/no", NotFoundError, "there is no usable ciphertext file"),
        (f"x:k?ciphertext-file={tmp_path}", NotFoundError, "there is no usable ciphertext file"),
    ]:
        with pytest.raises(kind, match=text):
            ciphertext_bytes(parse_reference(uri, options=CIPHERTEXT_OPTIONS))
    with pytest.raises(NotFoundError, match="there is no usable ciphertext file"):
        ciphertext_text(parse_reference(f"x:k?ciphertext-file={tmp_path}/raw", options=CIPHERTEXT_OPTIONS), ANY)


def test_a_slash_in_a_part_is_taken_only_where_it_means_one() -> None:
    reference = parse_reference("x:a%2Fb/c")
    assert reference.parts(slashes=True) == ["a/b", "c"]
    with pytest.raises(InvalidArgumentError, match="a part with a slash"):
        reference.parts()


@given(st.text(max_size=60))
def test_fuzz_any_reference_is_taken_apart_or_refused(text: str) -> None:
    with suppress(InvalidArgumentError):
        parse_reference(f"vault:{text}", options={"version"}).parts()
