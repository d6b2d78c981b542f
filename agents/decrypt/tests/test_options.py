"""The agent's parameters: what is taken, what is refused, and that a key never shows."""

import pytest
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.agent import load_keys, parse_parameters, passphrase_of

from repoagent.api import InvalidArgumentError, Parameters

SECRET = X25519Identity.generate().export()


def test_the_defaults_are_all_age_files_and_the_work_factor_of_age() -> None:
    options = parse_parameters(Parameters([("identity", "env:KEY")]))
    assert options.files.match("1/model.onnx.age")
    assert not options.files.match("1/model.onnx")
    assert (options.keys, options.passphrases, options.max_work_factor) == ((("identity", "env:KEY"),), (), 22)


def test_parameters_may_repeat() -> None:
    pairs = [("identity", "env:A"), ("passphrase", "file:/b"), ("identity", "kbs:///a/b/c"), ("max_work_factor", "18")]
    options = parse_parameters(Parameters(pairs))
    assert options.keys == (("identity", "env:A"), ("identity", "kbs:///a/b/c"))
    assert options.passphrases == ("file:/b",)
    assert options.max_work_factor == 18


@pytest.mark.parametrize(
    "pair",
    [
        ("identity", SECRET),
        ("identity", SECRET.lower()),
        ("identity", f"env:{SECRET}"),
        ("passphrase", "hunter2"),
        ("passphrase", ""),
        ("files", SECRET),
        ("identity", "-----BEGIN OPENSSH PRIVATE KEY-----"),
        ("identity", "/run/secrets/key"),
    ],
)
def test_a_key_in_place_of_a_reference_is_refused_and_not_repeated(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a reference") as error:
        parse_parameters(Parameters([pair]))
    assert not pair[1] or pair[1] not in str(error.value)


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "no key"),
        ([("identify", "env:X")], "unknown parameter 'identify'; did you mean 'identity'?"),
        ([("identity", "env:X"), ("max_work_factor", "23")], "from 1 to 22"),
        ([("identity", "env:X"), ("max_work_factor", "many")], "from 1 to 22"),
        ([("identity", "env:X"), ("files", "../*.age")], "inside the model"),
    ],
)
def test_mistakes_are_named(pairs: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        parse_parameters(Parameters(pairs))


def test_what_a_variable_or_a_file_holds_is_named_by_it_and_not_shown() -> None:
    options = parse_parameters(Parameters([("identity", "env:MODEL_KEY")]))
    with pytest.raises(InvalidArgumentError, match=r"identity 1 \(env:MODEL_KEY\), line 1: not an identity") as error:
        load_keys(options, lambda _: b"hush")
    assert "hush" not in str(error.value)


def test_what_a_reference_leads_to_is_named_by_its_scheme_and_not_shown() -> None:
    options = parse_parameters(Parameters([("identity", "exec:get-key --token=abc")]))
    with pytest.raises(InvalidArgumentError, match=r"identity 1 \(exec:\.\.\.\), line 1: not an identity") as error:
        load_keys(options, lambda _uri: b"my secret")
    assert "my secret" not in str(error.value)
    assert "abc" not in str(error.value)


def test_an_empty_passphrase_is_refused() -> None:
    options = parse_parameters(Parameters([("passphrase", "env:WORD")]))
    with pytest.raises(InvalidArgumentError, match="empty"):
        load_keys(options, lambda _uri: b"\n")


def test_one_final_newline_does_not_belong_to_a_passphrase() -> None:
    assert [passphrase_of(data) for data in (b"a b\r\n", b"a\n\n", b"a ", b"\n")] == [b"a b", b"a\n", b"a ", b""]


@pytest.mark.parametrize(
    ("value", "demanded", "copies"),
    [(None, False, True), (None, True, False), ("copy", True, True), ("refuse", False, False)],
)
def test_plain_files_are_refused_where_the_operator_demands_decryption(
    value: str | None, demanded: bool, copies: bool
) -> None:
    pairs = [("identity", "env:KEY"), *([("unencrypted", value)] if value else [])]
    assert parse_parameters(Parameters(pairs), demanded=demanded).copy_unencrypted is copies


def test_what_to_do_with_plain_files_is_one_of_two_words() -> None:
    with pytest.raises(InvalidArgumentError, match="unencrypted must be 'copy' or 'refuse', not 'yes'"):
        parse_parameters(Parameters([("identity", "env:KEY"), ("unencrypted", "yes")]))
